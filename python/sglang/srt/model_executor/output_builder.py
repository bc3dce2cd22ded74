"""The last stage's answer: sampled tokens with the logprobs that were asked for."""

from __future__ import annotations

import torch

from sglang.srt.layers.sampler import RowState, Sampler
from sglang.srt.managers.step_plan import StepPlan, TokenResult, unpack_ints


class OutputBuilder:
    """Turns the logits of a step into a `StepResult`.

    Logprobs are those of the model itself: log_softmax of the logits before bias, penalties and
    temperature.
    """

    def __init__(self, vocab_size: int) -> None:
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
        return [
            self._token(logits[i], token, self._sampler.row(slot))
            for i, (token, slot) in enumerate(zip(tokens, slots, strict=True))
        ]

    def input_logprobs(
        self, plan: StepPlan, row: int, next_input: int, logits: torch.Tensor
    ) -> list[TokenResult]:
        """Logprobs of the tokens that follow each position of a row; logits: [extend_len, vocab].

        The last position's follower is `next_input`, absent when it is -1.
        """
        start = sum(plan.extend_lens[:row])
        ids = unpack_ints(plan.input_ids)[start : start + plan.extend_lens[row]].tolist()
        following = ids[1:] + ([next_input] if next_input >= 0 else [])
        state = self._sampler.row(plan.req_pool_indices[row])
        return [self._token(logits[i], token, state) for i, token in enumerate(following)]

    def _token(self, logits: torch.Tensor, token_id: int, row: RowState) -> TokenResult:
        settings = row.settings
        if not settings.return_logprob:
            return TokenResult(token_id)
        logprobs = torch.log_softmax(logits, dim=-1)
        top: list[tuple[float, int]] = []
        if settings.top_logprobs_num > 0:
            values, ids = logprobs.sort(descending=True, stable=True)
            count = settings.top_logprobs_num
            top = list(zip(values[:count].tolist(), ids[:count].tolist(), strict=True))
        chosen = [(float(logprobs[i]), i) for i in settings.token_ids_logprob]
        return TokenResult(token_id, float(logprobs[token_id]), top, chosen)
