"""Lengths of prompts: fixed ones, or a distribution given by quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise


class LengthError(ValueError):
    """Prompt lengths that make no sense; one line."""


@dataclass(frozen=True)
class PromptLengths:
    """`quantiles`: (share of prompts, length) pairs, both rising; between two of them lengths are
    interpolated geometrically. `fixed` lengths are equally frequent; one of the two is given.
    """

    fixed: tuple[int, ...] = ()
    quantiles: tuple[tuple[float, int], ...] = ()

    def shown(self) -> tuple[int, ...]:
        """Lengths worth a column of their own: the fixed ones, or median, 90 % and 99 %."""
        if self.fixed:
            return tuple(dict.fromkeys(self.fixed))
        return tuple(dict.fromkeys(self.at(share) for share in (0.5, 0.9, 0.99)))

    def sample(self, count: int) -> list[int]:
        """`count` prompts that stand for the distribution, the same ones every time.

        Long and short ones alternate, since a burst sorted by length would be a special case.
        """
        if self.fixed:
            return [self.fixed[i % len(self.fixed)] for i in range(count)]
        # Steps of the golden ratio through the middles of `count` equal shares.
        order = sorted(range(count), key=lambda i: (i * 0.618033988749895) % 1.0)
        return [self.at((i + 0.5) / count) for i in order]

    def at(self, share: float) -> int:
        """Length that `share` of the prompts don't exceed."""
        points = self.quantiles
        if share <= points[0][0]:
            return points[0][1]
        for (low, short), (high, long) in pairwise(points):
            if share <= high:
                part = (share - low) / (high - low)
                return round(math.exp(math.log(short) * (1 - part) + math.log(long) * part))
        return points[-1][1]


def parse_lengths(text: str) -> PromptLengths:
    """ "8192,32768" or quantiles "0:128,0.5:2000,0.9:16000,1:131072". Raises LengthError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        if not any(":" in part for part in parts):
            fixed = tuple(int(part) for part in parts)
            if not fixed or min(fixed) < 1:
                raise LengthError(f"prompt lengths must be positive, got {text!r}")
            return PromptLengths(fixed=fixed)
        pairs = [part.split(":") for part in parts]
        points = tuple((float(share), int(length)) for share, length in pairs)
    except LengthError:
        raise
    except ValueError:
        raise LengthError(f"prompt lengths must be N,N,... or SHARE:N,..., got {text!r}") from None
    shares, lengths = [p[0] for p in points], [p[1] for p in points]
    if len(set(shares)) < len(shares) or shares != sorted(shares) or lengths != sorted(lengths):
        raise LengthError(f"shares and lengths of quantiles must rise, got {text!r}")
    if not (0 <= shares[0] and shares[-1] <= 1 and lengths[0] >= 1):
        raise LengthError(f"shares must be in [0, 1] and lengths positive, got {text!r}")
    return PromptLengths(quantiles=points)
