"""Themis (Mahajan et al., NSDI 2020): GPUs are auctioned to the apps that are treated worst."""
