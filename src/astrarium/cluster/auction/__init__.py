"""The auction of Themis (NSDI'20, section 3.3) takes goods and bids, and returns GPUs less hidden payments.

`goods` is what is sold, `bids` what it is worth to whom. `program` puts both into numbers. `capacity` and
`packing` say what fits and where. `search` finds the proportionally fair assignment: by `prices`, or by
`enumeration` where few GPUs are free. `partial_allocation` takes the hidden payments, `handout` turns
pieces into GPUs, and a `tally` says how well the auctions of a run were solved. All of it is pure.
"""
