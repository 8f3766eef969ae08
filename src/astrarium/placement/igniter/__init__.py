"""iGniter's model of GPUs that models share, and how its coefficients are fitted to measurements."""
