"""The loop of a live search: a backend's news become events, and decisions become orders.

`LiveTuning.step(now)` takes the news, lets the same engine, session and policy decide that run simulated, and
gives orders. Nothing in this package reads a clock or touches a process. The state counts a trial's own
iterations; a backend counts all that its candidate has.
"""
