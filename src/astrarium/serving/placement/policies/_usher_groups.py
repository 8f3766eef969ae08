"""Usher's groups: models whose needs of compute and of memory make up for each other are placed together.

In every round groups are paired by a matching of the most pairs, and among those of the smallest sum of
|compute - memory| of the pairs (Elvinger's thesis, section 5.2.2). Groups of up to n take log2(n) rounds.

Settled by us: a model counts with the mean over all sizes that were profiled. The thesis does not say what
counts; of a dozen simple choices that were tried, this alone allows all groups that its examples show. Where
all models need more compute than memory, the pairings of one round are equally good, whoever pairs with whom.
Needs are therefore whole numbers, so that ties are ties, and the order of the models decides them, not the
noise of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from astrarium.core.extras import from_extra
from astrarium.serving.placement.policies._requirements import Needs

Group = tuple[int, ...]  # positions of models, rising
RESOLUTION = 10_000  # of a unit of a share, for means


def surplus(needs: Needs) -> int:
    """Compute over memory, as a mean."""
    difference = sum(option.compute - option.memory_share for option in needs.profiled)
    return round(RESOLUTION * difference / max(1, len(needs.profiled)))


def make_groups(surpluses: Sequence[int], largest: int) -> list[Group]:
    """The larger groups first, then in the order of the models."""
    groups: list[Group] = [(position,) for position in range(len(surpluses))]
    for _ in range(largest.bit_length() - 1):
        groups = _paired(groups, surpluses)
    return sorted(groups, key=lambda group: (-len(group), group))


def distance(group: Group, surpluses: Sequence[int]) -> int:
    return abs(sum(surpluses[position] for position in group))


def _paired(groups: list[Group], surpluses: Sequence[int]) -> list[Group]:
    with from_extra("plan"):
        import networkx
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(groups)))
    for one, other in combinations(range(len(groups)), 2):
        graph.add_edge(one, other, weight=distance(groups[one] + groups[other], surpluses))
    pairs = sorted((min(pair), max(pair)) for pair in networkx.min_weight_matching(graph))
    alone = set(range(len(groups))) - {position for pair in pairs for position in pair}
    merged = [tuple(sorted(groups[one] + groups[other])) for one, other in pairs]
    return merged + [groups[position] for position in sorted(alone)]
