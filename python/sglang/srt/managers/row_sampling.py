"""What the last stage must know to sample for a request."""

from __future__ import annotations

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.step_plan import RowSampling, pack_ints


def sampling_of(req: Req) -> RowSampling:
    """Settings of an admitted request, with its token history where penalties need it."""
    params = req.sampling_params
    assert req.req_pool_idx is not None
    return RowSampling(
        req_pool_idx=req.req_pool_idx,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.sampling_seed or 0,
        min_len=req.num_prompt + params.min_new_tokens,
        stop_ids=sorted(req.stop_ids),
        logit_bias=params.logit_bias,
        return_logprob=req.return_logprob,
        top_logprobs_num=req.top_logprobs_num,
        token_ids_logprob=req.token_ids_logprob,
        history=pack_ints(req.tokens) if params.uses_penalties else b"",
        num_prompt=req.num_prompt,
    )
