"""Fluid: chapter 3 of Yu's dissertation, "Fluid: Resource-Aware Hyperparameter Tuning Engine"."""
