"""The auction of Themis (NSDI'20, section 3.3): goods and bids in, GPUs and hidden payments out.

`goods` and `bids` say what is sold and what it is worth to whom. `program` puts both into numbers, `capacity`
says what fits and `packing` with `slack` where, `search` with `few` finds the proportionally fair assignment,
`partial` takes the hidden payments, and `keeping` chooses what a winner keeps. All of it is pure.
"""
