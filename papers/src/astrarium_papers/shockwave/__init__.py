"""Shockwave (Zheng et al., NSDI 2023) and Gavel (Narayanan et al., OSDI 2020), whose simulator it shares."""
