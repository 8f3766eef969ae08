"""Astrarium schedules deep-learning work on GPUs: one policy, simulated, live and replayed.

Importing the package is cheap on purpose: every heavy part loads when it is first used.
"""

__version__ = "0.2.0"
