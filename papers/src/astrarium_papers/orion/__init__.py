"""Strati et al., "Orion: Interference-aware, Fine-grained GPU Sharing for ML Applications", simulated."""
