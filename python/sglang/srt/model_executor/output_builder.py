"""The last stage's answer: sampled tokens with the logprobs that were asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang.srt.layers.sampler import RowState, Sampler
from sglang.srt.managers.step_plan import StepPlan, TokenResult, unpack_ints

# Logits of the step's tokens [first, last): [last - first, vocab] in fp32.
LogitsOf = Callable[[int, int], torch.Tensor]


class OutputBuilder:
    """Turns the logits of a step into a `StepResult`.

    Logprobs are those of the model itself: log_softmax of the logits before bias, penalties and
    temperature.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sampler = Sampler(vocab_size)

    def set_rows(self, plan: StepPlan) -> None:
        """Take in the sampling settings that a plan carries."""
        self._sampler.set_rows(plan.sampling)

    def sample(self, plan: StepPlan, logits: torch.Tensor) -> list[TokenResult]:
        """Tokens of `plan.sample_rows`; logits: [len(sample_rows), vocab]."""
        slots = [plan.req_pool_indices[row] for row in plan.sample_rows]
        lens = [plan.prefix_lens[row] + plan.extend_lens[row] for row in plan.sample_rows]
        masks = {plan.sample_rows.index(row): mask for row, mask in plan.grammar_masks}
        tokens = self._sampler.sample(logits, slots, lens, masks)
        return _results(logits, tokens, [self._sampler.row(slot) for slot in slots])

    def input_logprobs(
        self, plan: StepPlan, row: int, next_input: int, logits_of: LogitsOf
    ) -> list[TokenResult]:
        """Logprobs of the tokens that follow each position of a row.

        The last position's follower is `next_input`, absent when it is -1. Logits are made for
        some positions at a time: for a whole chunk they could be larger than the model.
        """
        start = sum(plan.extend_lens[:row])
        ids = unpack_ints(plan.input_ids)[start : start + plan.extend_lens[row]].tolist()
        following = ids[1:] + ([next_input] if next_input >= 0 else [])
        state = self._sampler.row(plan.req_pool_indices[row])
        step = max(1, MAX_LOGITS // self._vocab_size)
        results: list[TokenResult] = []
        for first in range(0, len(following), step):
            tokens = following[first : first + step]
            logits = logits_of(start + first, start + first + len(tokens))
            results.extend(_results(logits, tokens, [state] * len(tokens)))
        return results


# Logits held at once for input logprobs: 64 MiB.
MAX_LOGITS = 2**24


def _results(logits: torch.Tensor, tokens: list[int], rows: list[RowState]) -> list[TokenResult]:
    """Tokens with the logprobs that their requests want; logits: [len(tokens), vocab]."""
    results = [TokenResult(token) for token in tokens]
    wanted = [i for i, row in enumerate(rows) if row.settings.return_logprob]
    if not wanted:
        return results
    logprobs = torch.log_softmax(logits if len(wanted) == len(rows) else logits[wanted], dim=-1)
    for line, i in zip(logprobs, wanted, strict=True):
        settings = rows[i].settings
        results[i] = TokenResult(
            tokens[i],
            float(line[tokens[i]]),
            _top(line, settings.top_logprobs_num),
            [(float(line[token]), token) for token in settings.token_ids_logprob],
        )
    return results


def _top(logprobs: torch.Tensor, count: int) -> list[tuple[float, int]]:
    """The `count` highest logprobs with their token ids, equal ones by id; logprobs: [vocab]."""
    count = min(count, len(logprobs))
    if count <= 0:
        return []
    # topk leaves the order of equal values open; all that tie with the last are looked at.
    lowest = logprobs.topk(count).values[-1]
    ids = (logprobs >= lowest).nonzero().flatten()
    values, order = logprobs[ids].sort(descending=True, stable=True)
    return list(zip(values[:count].tolist(), ids[order[:count]].tolist(), strict=True))
