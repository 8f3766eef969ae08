"""Figures 9 to 12: fairness and GPU time on the testbed."""
