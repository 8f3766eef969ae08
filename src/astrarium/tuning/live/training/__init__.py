"""A user who has a model tuned writes a *build*, which makes a *training* of a candidate's values.

    def build(values, workers):
        return MyTraining(values["rate"], workers)

A training lives for one run. A trial that goes on elsewhere, on more GPUs or on a share of one, is built anew
and loads what the last training saved. Random numbers of Python, NumPy and PyTorch go on where they were, and
are the same on all workers: a batch that is drawn at random is the same batch everywhere, of which each
worker takes its share.
"""
