"""The modular inference-cluster framework (Elvinger, thesis): placement policies on a cluster of V100s."""
