"""The workloads of Themis (Mahajan et al., NSDI 2020) are drawn anew, from what it prints.

`models` get slower where their GPUs are apart, `clusters` are those of its section 6.1. Workload 1 is
`sweeps`, drawn or taken from a trace of `philly`; workload 2 is the same apps as `successive_halving`.

What comes out has real lengths: `apps.scaled` makes it as small as the paper's testbed needed.
"""
