"""A board that the process of a test can join itself, as the preloaded library does."""

from __future__ import annotations

from astrarium.gate import board


class Board(board.Board):
    def join(self, kind: str, name: str) -> int:
        """Take a place for this process."""
        place: int = self._board.join(kind, name)
        return place

    def leave(self, place: int) -> None:
        self._board.leave(place)
