"""The auction of Themis (NSDI'20, section 3.3) takes goods and bids, and returns GPUs less hidden payments.

`goods` says what is sold and what it is worth to whom. `program` puts both into numbers, `packing` says what
fits and where, `search` finds the proportionally fair assignment, and `partial` takes the hidden payments and
chooses what a winner keeps. All of it is pure.
"""
