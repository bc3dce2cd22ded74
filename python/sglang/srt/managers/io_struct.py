"""Every message between the front end (HTTP or offline engine) and the stage processes.

All are msgspec structs, encoded as msgpack with a type tag. `MESSAGE_VERSION` is the first byte
of each frame: two processes of different builds refuse each other instead of misreading.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sglang.srt.sampling.sampling_params import SamplingParams

MESSAGE_VERSION = 1


class TokenizedGenerateReqInput(msgspec.Struct, tag="generate", omit_defaults=True):
    """A validated request on its way to the scheduler.

    `sampling_params.max_new_tokens` is set (never None) and prompt plus output fit the context.
    `logprob_start_len` -1 asks for output logprobs only; k >= 0 for input logprobs from position k.
    """

    rid: str
    input_ids: list[int]
    sampling_params: SamplingParams
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = []


class AbortReq(msgspec.Struct, tag="abort", omit_defaults=True):
    """Stop a request wherever it is. With `finish` set the client got all it wanted (a stop
    string matched): the scheduler releases the request and answers nothing more."""

    rid: str = ""
    abort_all: bool = False
    finish: bool = False
    message: str = "aborted by the client"


class ControlReq(msgspec.Struct, tag="control", omit_defaults=True):
    """A call to the scheduler outside of generation, answered by one `ControlReply`."""

    id: str
    op: Literal["flush_cache", "server_info", "cache_report", "shutdown"]


FrontendMessage = TokenizedGenerateReqInput | AbortReq | ControlReq


class FinishReason(msgspec.Struct, omit_defaults=True):
    """Why a request ended. `status_code` is set for aborts: the HTTP status to answer with."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None


class TokenLogprobs(msgspec.Struct, omit_defaults=True):
    """Logprobs of one token: its own, and the alternatives asked for as (logprob, token id).

    `logprob` is None only for the first input token, which nothing predicts.
    """

    token_id: int
    logprob: float | None = None
    top: list[tuple[float, int]] = []
    chosen_ids: list[tuple[float, int]] = []


class TokenOut(msgspec.Struct, omit_defaults=True):
    """New tokens of one request since its last `TokenOut`, and its end when it has ended."""

    rid: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprobs] = []
    input_logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None


class BatchTokenOut(msgspec.Struct, tag="tokens"):
    """What one processed micro-batch produced."""

    outs: list[TokenOut]


class ControlReply(msgspec.Struct, tag="control_reply", omit_defaults=True):
    """Answer to the `ControlReq` of the same id."""

    id: str
    success: bool
    message: str = ""
    body: dict[str, Any] = {}


class StageReady(msgspec.Struct, tag="ready"):
    """A stage has loaded its slice and its pools; `report` is its row of `/server_info`."""

    pp_rank: int
    report: dict[str, Any]


class StageFailed(msgspec.Struct, tag="failed"):
    """A stage cannot go on. `message` is one line for the log, `details` the traceback."""

    pp_rank: int
    message: str
    details: str = ""


class StageAlive(msgspec.Struct, tag="alive"):
    """Sent about once a second by every stage but the first: what it is doing, and for how long.

    A stage whose process is stopped sends none; one that is stuck says in what.
    """

    pp_rank: int
    doing: str
    seconds: float


class SchedulerStats(msgspec.Struct, tag="stats"):
    """Sent about once a second by a living scheduler loop: heartbeat and gauges in one.

    `gauges` are instantaneous values, `counters` only grow; names are those of `/metrics`
    without the `sglang:` prefix.
    """

    gauges: dict[str, float]
    counters: dict[str, float]


SchedulerMessage = (
    BatchTokenOut | ControlReply | StageReady | StageFailed | StageAlive | SchedulerStats
)
