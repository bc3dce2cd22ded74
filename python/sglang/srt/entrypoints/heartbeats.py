"""Which stages have given a sign of life lately. Pure: the caller reads the clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass
class _Sign:
    at: float
    doing: str = ""
    busy_seconds: float = 0.0


class Heartbeats:
    """The last sign of each stage; a stage is stuck when it gives none for `timeout_seconds`, or
    says that it has been busy with one thing for so long."""

    def __init__(self, pp_ranks: Iterable[int], timeout_seconds: float, now: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._signs = {pp_rank: _Sign(now) for pp_rank in pp_ranks}

    def beat(self, pp_rank: int, now: float, doing: str = "", busy_seconds: float = 0.0) -> None:
        """Note a sign of life of a stage."""
        self._signs[pp_rank] = _Sign(now, doing, busy_seconds)

    def stuck(self, now: float) -> list[str]:
        """A phrase for each stuck stage, with what it said it was doing."""
        phrases = []
        for pp_rank, sign in sorted(self._signs.items()):
            last = f" (last: {sign.doing})" if sign.doing else ""
            if now - sign.at > self._timeout_seconds:
                phrases.append(
                    f"stage {pp_rank} gave no sign of life for {self._timeout_seconds:g} s{last}"
                )
            elif sign.busy_seconds > self._timeout_seconds:
                phrases.append(
                    f"stage {pp_rank} is stuck: {sign.doing} for {sign.busy_seconds:.0f} s"
                )
        return phrases
