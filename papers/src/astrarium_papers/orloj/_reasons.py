"""What we know or suspect of the curves that differ from the paper's."""

from __future__ import annotations

_BEYOND = "the paper's load was beyond all of its systems here, even at 5x"

# Of a whole case; these come first.
_BY_CASE = {
    "rdinet-cifar": "a fifth of our requests take ten times as long as the others, so that nearly every "
    "batch of several waits for such a one: a load that is the same for all by the mean is too much here, "
    "and the paper's was not",
    "skipnet-imagenet": "requests of 3 ms: what the paper's systems spend around an execution, a simulation "
    "does not see",
    "blenderbot-convAI": _BEYOND,
    "blenderbot-cornell": _BEYOND,
}

_BY_SYSTEM = {
    "Clipper": "ours runs its batches as fast as the others do; the paper's loses requests even at 5x and "
    "with one mode, as if its capacity were below the load",
    "Nexus": "ours gives up requests that would be late; the paper's finishes about as few as its Clipper in "
    "every case, as if it did not",
    "Clockwork": "how many it finishes follows from how often a batch overruns its estimate by more than "
    "10 ms, and so from the distribution, whose shape we had to guess",
    "Orloj": "the load of each workload, and the shape of its distribution, are not printed",
}


def reason(case: str, system: str) -> str:
    return _BY_CASE.get(case, _BY_SYSTEM[system])
