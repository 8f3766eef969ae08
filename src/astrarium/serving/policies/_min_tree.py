"""A tournament tree finds the slot with the least value, and the first slot below a bound, in O(log n).

Ties go to the smallest slot. Deferred batching asks it about GPUs (which smallest id is free by then?) and
about models (whose moment comes next?).
"""

from __future__ import annotations

from astrarium.core.quantities import FOREVER, Time


class MinTree:
    def __init__(self, slots: int, value: Time = FOREVER) -> None:
        self.width = 1 << max(0, slots - 1).bit_length()
        self.values = [FOREVER] * (2 * self.width)
        for slot in range(slots):
            self.set(slot, value)

    def __getitem__(self, slot: int) -> Time:
        return self.values[self.width + slot]

    @property
    def least(self) -> Time:
        return self.values[1]

    def set(self, slot: int, value: Time) -> None:
        values = self.values
        node = self.width + slot
        if values[node] == value:
            return
        values[node] = value
        while node > 1:
            sibling = values[node ^ 1]
            node >>= 1
            smaller = value if value < sibling else sibling
            if values[node] == smaller:
                return
            values[node] = value = smaller

    def first_at_most(self, bound: Time) -> int:
        """Return the smallest slot whose value is at most *bound*, or -1."""
        values = self.values
        node = 1
        if values[1] > bound:
            return -1
        while node < self.width:
            node *= 2
            if values[node] > bound:
                node += 1
        return node - self.width

    def argmin(self) -> int:
        """Return the smallest slot that holds the least value; -1 if every slot holds FOREVER."""
        return -1 if self.values[1] >= FOREVER else self.first_at_most(self.values[1])
