"""A live search is run from start to end, with the wall clock and a trial backend, and keeps its results.

The folder of a run holds `journal.jsonl` (results, which a resumed run finds again), `trace.jsonl` (events
and decisions, for replay) and what the backend keeps.
"""
