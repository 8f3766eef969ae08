"""Salus: chapter 2 of Yu's dissertation, "Salus: Fine-Grained GPU Sharing Primitives for Deep Learning"."""
