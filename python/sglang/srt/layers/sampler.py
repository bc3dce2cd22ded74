"""From logits to tokens, with per-request settings and counter-based randomness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from sglang.srt.managers.step_plan import RowSampling

UIntArray = npt.NDArray[np.uint64]


class SamplerError(RuntimeError):
    """The model's logits cannot be sampled from; the message names the row."""


class RowState:
    """One request's settings on the last stage, and its token counts when it uses penalties."""

    def __init__(self, settings: RowSampling, vocab_size: int) -> None:
        self.settings = settings
        self.is_plain = (
            not settings.logit_bias
            and settings.frequency_penalty == 0.0
            and settings.presence_penalty == 0.0
            and settings.repetition_penalty == 1.0
        )
        self.output_counts: torch.Tensor | None = None
        self.seen: torch.Tensor | None = None
        if settings.history:
            history = torch.from_numpy(
                np.frombuffer(settings.history, dtype="<i4").astype(np.int64)
            )
            output = history[settings.num_prompt :]
            self.output_counts = torch.bincount(output, minlength=vocab_size).float()
            self.seen = torch.bincount(history, minlength=vocab_size) > 0

    def add_token(self, token_id: int) -> None:
        """Count a sampled token."""
        if self.output_counts is not None and self.seen is not None:
            self.output_counts[token_id] += 1
            self.seen[token_id] = True

    def adjust(self, logits: torch.Tensor) -> None:
        """Bias and penalties, in place: logits [vocab].

        Repetition penalty as in CTRL (arXiv:1909.05858), over prompt and output; frequency and
        presence penalties as in OpenAI's API, over the output.
        """
        settings = self.settings
        if settings.logit_bias:
            ids = torch.tensor(list(settings.logit_bias), device=logits.device)
            logits[ids] += torch.tensor(list(settings.logit_bias.values()), device=logits.device)
        if self.output_counts is None or self.seen is None:
            return
        counts = self.output_counts.to(logits.device)
        if settings.repetition_penalty != 1.0:
            penalty = settings.repetition_penalty
            scaled = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits.copy_(torch.where(self.seen.to(logits.device), scaled, logits))
        logits -= settings.frequency_penalty * counts
        logits -= settings.presence_penalty * (counts > 0)


class Sampler:
    """Samples the rows of a step. Settings are kept by request slot until overwritten."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: dict[int, RowState] = {}

    def set_rows(self, settings: Sequence[RowSampling]) -> None:
        """Take in the settings of (re)admitted requests."""
        for row in settings:
            self._rows[row.req_pool_idx] = RowState(row, self._vocab_size)

    def row(self, req_pool_idx: int) -> RowState:
        """Settings of the request in a slot."""
        return self._rows[req_pool_idx]

    def sample(
        self,
        logits: torch.Tensor,
        slots: Sequence[int],
        seq_lens: Sequence[int],
        masks: dict[int, bytes] | None = None,
    ) -> list[int]:
        """One token a row.

        logits: [rows, vocab] fp32, left unchanged; slots: request slots; seq_lens: tokens of each
        sequence so far, which is the position of the token to be drawn; masks: allowed tokens of
        rows with a grammar, a bit each, lowest first. The draw depends on (seed, position) alone.
        Raises SamplerError on NaN.
        """
        _check_finite(logits, slots)
        rows = [self._rows[slot] for slot in slots]
        work = self._adjusted(logits, rows, seq_lens, masks or {})
        tokens = work.argmax(-1)
        drawn = [i for i, row in enumerate(rows) if row.settings.temperature > MIN_TEMPERATURE]
        if drawn:
            tokens[drawn] = self._draw(work[drawn], [rows[i] for i in drawn], seq_lens, drawn)
        ids = [int(token) for token in tokens.tolist()]
        for row, token_id in zip(rows, ids, strict=True):
            row.add_token(token_id)
        return ids

    def _adjusted(
        self,
        logits: torch.Tensor,
        rows: list[RowState],
        seq_lens: Sequence[int],
        masks: dict[int, bytes],
    ) -> torch.Tensor:
        early = [
            row.settings.stop_ids if seq_len < row.settings.min_len else []
            for row, seq_len in zip(rows, seq_lens, strict=True)
        ]
        if all(row.is_plain for row in rows) and not any(early) and not masks:
            return logits
        work = logits.clone()
        for i, row in enumerate(rows):
            row.adjust(work[i])
            if early[i]:
                work[i, torch.tensor(early[i], device=work.device)] = float("-inf")
            if i in masks:
                work[i].masked_fill_(
                    ~_allowed(masks[i], work.shape[1]).to(work.device), float("-inf")
                )
        return work

    def _draw(
        self,
        logits: torch.Tensor,
        rows: list[RowState],
        seq_lens: Sequence[int],
        which: list[int],
    ) -> torch.Tensor:
        """One draw a row from the distribution that its settings leave.

        How a row is drawn depends on its own settings and logits alone, never on its neighbours.
        """
        settings = [row.settings for row in rows]
        temperatures = _column([s.temperature for s in settings], logits)
        probs = torch.softmax(logits / temperatures, dim=-1)
        seeds = np.array([s.seed for s in settings], dtype=np.int64).astype(np.uint64)
        positions = np.array([seq_lens[i] for i in which], dtype=np.uint64)
        uniform = torch.from_numpy(hash_uniform(seeds, positions)).to(logits.device).unsqueeze(1)
        cut = [i for i, s in enumerate(settings) if s.top_k > 0 or s.top_p < 1 or s.min_p > 0]
        if not cut:
            return _inverse_cdf(probs, uniform)
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        whole = [i for i in range(len(rows)) if i not in set(cut)]
        if whole:
            tokens[whole] = _inverse_cdf(probs[whole], uniform[whole])
        tokens[cut] = _draw_truncated(probs[cut], [settings[i] for i in cut], uniform[cut])
        return tokens


# Candidates sorted at first; only a row that may keep more of them has its vocabulary sorted.
CANDIDATES = 1024
MAX_SORTED = 2**23  # probabilities of whole vocabularies that are sorted at once
# Below this the distribution is its most likely token, and the division might overflow.
MIN_TEMPERATURE = 1e-5


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(1)


def _inverse_cdf(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw an index a row; probs: [rows, n], any positive sum; uniform: [rows, 1] in [0, 1)."""
    cdf = probs.double().cumsum(-1)
    index = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).squeeze(1)
    # Rounding may put the target on the total: the last token that can be drawn is meant then.
    last = probs.shape[1] - 1 - (probs > 0).flip(-1).int().argmax(-1)
    return torch.minimum(index, last)


def _draw_truncated(
    probs: torch.Tensor, settings: Sequence[RowSampling], uniform: torch.Tensor
) -> torch.Tensor:
    """Draw after top_k, top_p (arXiv:1904.09751) and min_p (arXiv:2407.01082), in this order.

    probs: [rows, vocab]; tokens are taken in order of probability, equal ones by id.
    """
    vocab_size = probs.shape[1]
    count = min(CANDIDATES, vocab_size)
    ids = probs.topk(count, dim=-1).indices.sort(dim=-1).values
    kept, ids = _truncate(probs, ids, settings)
    tokens = ids.gather(1, _inverse_cdf(kept, uniform).unsqueeze(1)).squeeze(1)
    if count == vocab_size:
        return tokens
    smallest = kept.masked_fill(kept == 0, 2.0).amin(-1)
    too_few = smallest <= probs.gather(1, ids[:, -1:]).squeeze(1)
    too_few |= _column([s.top_k for s in settings], probs).squeeze(1) > count
    for rows in too_few.nonzero().flatten().split(max(1, MAX_SORTED // vocab_size)):
        numbers = rows.tolist()
        everything = torch.arange(vocab_size, device=probs.device).expand(len(numbers), -1)
        kept, ids = _truncate(probs[rows], everything, [settings[i] for i in numbers])
        tokens[rows] = ids.gather(1, _inverse_cdf(kept, uniform[rows]).unsqueeze(1)).squeeze(1)
    return tokens


def _truncate(
    probs: torch.Tensor, ids: torch.Tensor, settings: Sequence[RowSampling]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of the candidates `ids` ([rows, n], ascending) with those cut off set to zero.

    Returns them in falling order, as they were before the cuts, and the ids in that order. What
    top_p sums are probabilities among the top_k.
    """
    kept, order = probs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(kept.shape[1], device=kept.device)
    limits = [s.top_k if s.top_k > 0 else probs.shape[1] for s in settings]
    inside = rank < _column(limits, kept)
    # Among the top_k when there is a top_k, else among all tokens, candidates or not.
    among_all = [float(s.top_k <= 0) for s in settings]
    totals = torch.where(
        _column(among_all, kept) > 0,
        probs.sum(-1, keepdim=True),
        (kept * inside).sum(-1, keepdim=True),
    )
    before = (kept.cumsum(-1) - kept) / totals
    inside &= before < _column([s.top_p if s.top_p < 1 else 2.0 for s in settings], kept)
    inside &= kept >= kept[:, :1] * _column([s.min_p for s in settings], kept)
    inside[:, 0] = True
    return kept * inside, ids.gather(1, order)


def _allowed(mask: bytes, vocab_size: int) -> torch.Tensor:
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")
    return torch.from_numpy(bits[:vocab_size].astype(bool))


def hash_uniform(seeds: UIntArray, positions: UIntArray) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1) from (seed, position) pairs.

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195), applied to
    the seed and again with the position as counter.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seeds + golden) + (positions + np.uint64(1)) * golden)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: UIntArray) -> UIntArray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _check_finite(logits: torch.Tensor, slots: Sequence[int]) -> None:
    # A sum is NaN or infinite when any term is; it is far cheaper than looking at each.
    sums = logits.sum(-1)
    if not bool(torch.isfinite(sums).all()):
        bad = int((~torch.isfinite(sums)).nonzero()[0])
        raise SamplerError(
            f"the logits of row {bad} (request slot {slots[bad]}) are not finite: the weights or a "
            "state are damaged"
        )
