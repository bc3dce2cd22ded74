"""The plan of one micro-batch: what stage 0 decided and every stage executes.

Plans are executed in order of `seq` on every stage. Whatever a plan reads or writes is therefore
safe against every later plan, and stage 0 may hand a slot to its next owner as soon as the last
plan that uses it has been issued. No stage but 0 decides anything.
"""

from __future__ import annotations

import msgspec
import numpy as np


class RowSampling(msgspec.Struct, array_like=True, frozen=True):
    """Sampling settings of one request, sent to the last stage when the request is (re)admitted.

    `history` (int32 bytes: prompt and output so far) is sent only when penalties need it;
    `num_prompt` of its tokens are the prompt. They are kept under `req_pool_idx` until the next
    request in that slot overwrites them.
    """

    req_pool_idx: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    seed: int
    min_len: int  # below this sequence length (prompt + output) the `stop_ids` are masked out
    stop_ids: list[int]
    logit_bias: dict[int, float]
    return_logprob: bool
    top_logprobs_num: int
    token_ids_logprob: list[int]
    history: bytes
    num_prompt: int


class StepPlan(msgspec.Struct, array_like=True, frozen=True):
    """One micro-batch. Arrays are little-endian int32 bytes; row i of each list is one request.

    Rows with `extend_lens[i] == 1` that continue a sequence come first: `num_decode_rows` of them.
    Order of effects on a stage: table updates, `zero_states`, `copy_states` (restore a cached
    state), forward (which saves each of `track_states` at its position), sampling.
    """

    seq: int
    mb_slot: int
    num_decode_rows: int
    req_pool_indices: list[int]
    prefix_lens: list[int]  # tokens of the row's sequence that are already in the pools
    extend_lens: list[int]  # tokens of the row's sequence that this step computes
    mamba_indices: list[int]  # empty for a model without recurrent state
    sample_rows: list[int]  # rows whose last position yields a token
    input_ids: bytes  # int32 [sum(extend_lens)]
    out_cache_loc: bytes  # int32 [sum(extend_lens)]: KV slot of each new token
    # (req_pool_idx, first position, int32 slots): a prefix hit, or KV that moved to the tree's copy
    table_updates: list[tuple[int, int, bytes]] = []
    zero_states: list[int] = []
    copy_states: list[tuple[int, int]] = []  # (from, to) Mamba slots
    # (row, position, slot): save the state after `position` tokens of the row's sequence, with
    # prefix_len < position <= prefix_len + extend_len. Positions inside the step are multiples of
    # the kernels' chunk length; the end of the step may be any position.
    track_states: list[tuple[int, int, int]] = []
    sampling: list[RowSampling] = []
    input_logprob_rows: list[int] = []  # rows that want the logprobs of their own input tokens
    next_input_ids: list[int] = []  # for those rows: the input token after this chunk, or -1
    grammar_masks: list[tuple[int, bytes]] = []  # (row, allowed tokens, a bit each, lowest first)
    measure: bool = False  # finish all device work before the end of a span is taken
    tolerate_errors: bool = False  # profiling: a stage that fails says so instead of ending

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes, over all rows."""
        return len(self.input_ids) // 4


class StageSpan(msgspec.Struct, array_like=True, frozen=True):
    """When one stage worked on a plan, in seconds of its own monotonic clock."""

    received: float  # the plan and its activations were there (stage 0: the plan was made)
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """Time of the forward pass."""
        return self.ended - self.started


class TokenResult(msgspec.Struct, array_like=True, frozen=True):
    """One sampled token with the logprobs that were asked for."""

    token_id: int
    logprob: float = 0.0
    top: list[tuple[float, int]] = []
    chosen_ids: list[tuple[float, int]] = []


class StepResult(msgspec.Struct, array_like=True, frozen=True):
    """What the last stage sends back: `tokens[i]` belongs to `plan.sample_rows[i]`.

    A plan that samples nothing is answered too, with no tokens: stage 0 learns from it that the
    micro-batch has left the pipe, and nobody waits for it. `error` is set when a stage failed in
    a plan that tolerates it. `input_logprobs[i]` belongs to `plan.input_logprob_rows[i]`: the
    logprob of each of the row's next input tokens, in order.
    """

    seq: int
    tokens: list[TokenResult]
    stage_spans: list[StageSpan] = []  # one a stage, in order
    error: str = ""
    input_logprobs: list[list[TokenResult]] = []


_plan_encoder = msgspec.msgpack.Encoder()
_plan_decoder = msgspec.msgpack.Decoder(StepPlan)
_result_decoder = msgspec.msgpack.Decoder(StepResult)


def encode(message: StepPlan | StepResult) -> bytes:
    """Encode a plan or a result; the same message always gives the same bytes."""
    return _plan_encoder.encode(message)


def decode_plan(payload: bytes) -> StepPlan:
    """Decode a plan. Raises msgspec.DecodeError on anything that is not one."""
    return _plan_decoder.decode(payload)


def decode_result(payload: bytes) -> StepResult:
    """Decode a result. Raises msgspec.DecodeError on anything that is not one."""
    return _result_decoder.decode(payload)


def pack_ints(values: np.ndarray | list[int]) -> bytes:
    """Integers as little-endian int32 bytes."""
    return np.asarray(values, dtype="<i4").tobytes()


def unpack_ints(payload: bytes) -> np.ndarray:
    """The read-only int32 array that `pack_ints` wrote."""
    return np.frombuffer(payload, dtype="<i4")
