"""What happens to a request when a result comes back: append, finish, release, reply."""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.managers.batch_planner import BatchPlanner
from sglang.srt.managers.io_struct import FinishReason, TokenLogprobs, TokenOut
from sglang.srt.managers.req_release import release_req
from sglang.srt.managers.schedule_batch import BatchRow, Req, ReqStatus, ScheduleBatch
from sglang.srt.managers.step_plan import StepResult, TokenResult


class ResultProcessor:
    """Turns step results into replies. Finished requests are released here and nowhere else."""

    def __init__(self, planner: BatchPlanner, on_finished: Callable[[Req], None]) -> None:
        self._planner = planner
        self._on_finished = on_finished

    def process(self, batch: ScheduleBatch, result: StepResult) -> list[TokenOut]:
        """Replies of one micro-batch.

        A request that was aborted or retracted while the micro-batch was in flight is skipped:
        its row was computed for nothing, and what it will need is computed again.
        """
        tokens = dict(zip(batch.plan.sample_rows, result.tokens, strict=True))
        inputs = dict(zip(batch.plan.input_logprob_rows, result.input_logprobs, strict=True))
        outs = []
        for index, row in enumerate(batch.rows):
            req = row.req
            if req.finished or req.num_retractions != row.epoch:
                continue
            out = TokenOut(req.rid, [], req.num_prompt, req.cached_tokens)
            if index in inputs:
                out.input_logprobs = _input_logprobs(row, inputs[index])
            if row.end == req.num_tokens:
                req.token_in_flight = False
                self._advance(req, tokens.get(index), out)
            if out.token_ids or out.input_logprobs or out.finish_reason:
                outs.append(out)
        return outs

    def finish(self, req: Req, reason: FinishReason) -> TokenOut:
        """End a request wherever it is and give back its slots; the reply that says so."""
        self._planner.remove(req)
        release_req(self._planner.memory, req)
        req.finish_reason = reason
        req.to(ReqStatus.FINISHED)
        self._on_finished(req)
        return TokenOut(req.rid, [], req.num_prompt, req.cached_tokens, finish_reason=reason)

    def _advance(self, req: Req, token: TokenResult | None, out: TokenOut) -> None:
        if token is not None:
            req.append_token(token.token_id)
            if req.grammar is not None:
                req.grammar.consume_token(token.token_id)
            out.token_ids.append(token.token_id)
            if req.return_logprob:
                out.logprobs.append(token_logprobs(token))
        reason = finish_reason(req, token)
        if reason is not None:
            out.finish_reason = self.finish(req, reason).finish_reason


def finish_reason(req: Req, token: TokenResult | None) -> FinishReason | None:
    """Why a request ends after `token`, or None when it goes on."""
    if (
        token is not None
        and token.token_id in req.stop_ids
        and req.num_output > req.sampling_params.min_new_tokens
    ):
        return FinishReason("stop", matched=token.token_id)
    if token is not None and req.grammar is not None and req.grammar.is_stopped():
        return FinishReason("stop")
    if req.remaining_new_tokens <= 0:
        return FinishReason("length", length=req.num_output)
    return None


def token_logprobs(token: TokenResult) -> TokenLogprobs:
    """A sampled token's logprobs as the front end gets them."""
    return TokenLogprobs(token.token_id, token.logprob, token.top, token.chosen_ids)


def _input_logprobs(row: BatchRow, following: list[TokenResult]) -> list[TokenLogprobs]:
    """Logprobs of prompt tokens that a row gave, from `logprob_start_len` on, each once.

    `following[k]` is the token at position `row.start + 1 + k`.
    """
    req = row.req
    found = []
    if req.logprob_start_len == 0 and req.input_logprobs_sent == 0:
        found.append(TokenLogprobs(int(req.tokens[0])))
        req.input_logprobs_sent = 1
    for position, token in enumerate(following, start=row.start + 1):
        wanted = req.logprob_start_len <= position < req.num_prompt
        if wanted and position >= req.input_logprobs_sent:
            found.append(token_logprobs(token))
            req.input_logprobs_sent = position + 1
    return found
