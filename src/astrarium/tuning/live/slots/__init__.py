"""Slots are processes that train runs, one after another; a fork server starts them in milliseconds.

`SlotBackend` trains each run on a gang of slots, which it takes from a pool. A slot trains as a `GangMember`.
"""
