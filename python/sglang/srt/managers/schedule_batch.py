"""A request, and a micro-batch of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang.srt.managers.io_struct import FinishReason, TokenizedGenerateReqInput
from sglang.srt.managers.step_plan import StepPlan
from sglang.srt.mem_cache.base_prefix_cache import TreeNode
from sglang.srt.sampling.sampling_params import SamplingParams


class ReqStatus(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"  # in the queue; holds nothing
    PREFILLING = "prefilling"  # admitted; some tokens not yet computed
    DECODING = "decoding"  # all known tokens computed or in flight
    FINISHED = "finished"  # answered and released, whatever the reason


_TRANSITIONS: dict[ReqStatus, frozenset[ReqStatus]] = {
    ReqStatus.WAITING: frozenset({ReqStatus.PREFILLING, ReqStatus.FINISHED}),
    ReqStatus.PREFILLING: frozenset({ReqStatus.DECODING, ReqStatus.WAITING, ReqStatus.FINISHED}),
    ReqStatus.DECODING: frozenset({ReqStatus.WAITING, ReqStatus.FINISHED}),
    ReqStatus.FINISHED: frozenset(),
}


class Req:
    """One request. The scheduler of stage 0 owns it; nothing outside stage 0 sees it.

    The arithmetic of its life is `num_computed` catching up with `num_tokens`: a prefix hit sets
    it, a chunk or a decode step raises it, a retraction resets it. It counts tokens of *issued*
    steps, since plans run in order on every stage (see step_plan.py).
    """

    def __init__(
        self,
        rid: str,
        input_ids: list[int] | npt.NDArray[np.int32],
        sampling_params: SamplingParams,
        *,
        arrival: int,
        owner: int,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.rid = rid
        self.sampling_params = sampling_params
        self.arrival = arrival  # position in order of arrival; the highest is the youngest
        self.owner = owner  # id in the OwnerTable
        self.stop_ids = stop_ids  # tokens that end the output
        self.num_prompt = len(input_ids)
        max_new = sampling_params.max_new_tokens
        assert max_new is not None, "the front end resolves max_new_tokens"
        self.max_new_tokens = max_new
        self._tokens = np.empty(self.num_prompt + max_new + 1, dtype=np.int32)
        self._tokens[: self.num_prompt] = input_ids
        self.num_tokens = self.num_prompt
        self.status = ReqStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.return_logprob = False
        self.top_logprobs_num = 0
        self.token_ids_logprob: list[int] = []
        self.logprob_start_len = -1
        # What it holds (all None or 0 while waiting).
        self.req_pool_idx: int | None = None
        self.mamba_pool_idx: int | None = None
        self.mamba_track_idx: int | None = None
        self.last_node: TreeNode | None = None  # locked end of the part that the cache holds
        self.protected_len = 0  # tokens whose KV is the cache's
        self.kv_len = 0  # tokens that have a KV slot in the page table
        self.num_computed = 0
        self.tracked: list[tuple[int, int]] = []  # (position, Mamba slot): saved, not yet cached
        # What is under way.
        self.token_in_flight = False  # a decode row enters a plan only when its last token is back
        self.branch_len = 0  # where the cached KV of others parts from this prompt
        self.input_logprobs_sent = 0  # prompt positions whose logprobs the client has
        self.sampling_sent = False  # the last stage knows this request's sampling settings
        self.cached_tokens = 0  # of the first admission, what the client is told
        self.num_retractions = 0
        self.grammar: Any = None  # `grammar_manager.Matcher`, once compiled

    @classmethod
    def from_input(
        cls, req: TokenizedGenerateReqInput, arrival: int, owner: int, eos_ids: frozenset[int]
    ) -> Req:
        """Build from the front end's message. `eos_ids` end the output unless `ignore_eos`."""
        params = req.sampling_params
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= eos_ids
        new = cls(req.rid, req.input_ids, params, arrival=arrival, owner=owner, stop_ids=stops)
        new.return_logprob = req.return_logprob
        new.top_logprobs_num = req.top_logprobs_num
        new.token_ids_logprob = req.token_ids_logprob
        new.logprob_start_len = req.logprob_start_len if req.return_logprob else -1
        return new

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Prompt and output so far (a view)."""
        return self._tokens[: self.num_tokens]

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt

    @property
    def remaining_new_tokens(self) -> int:
        """Tokens it may still generate."""
        return self.max_new_tokens - self.num_output

    @property
    def finished(self) -> bool:
        """Whether it was answered and released."""
        return self.status is ReqStatus.FINISHED

    @property
    def can_decode(self) -> bool:
        """Whether its next decode step may enter a plan now."""
        return self.status is ReqStatus.DECODING and not self.token_in_flight

    def append_token(self, token_id: int) -> None:
        """Add a generated token."""
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1

    def to(self, status: ReqStatus) -> None:
        """Change status. Raises RuntimeError on a transition that the table does not allow."""
        if status not in _TRANSITIONS[self.status]:
            raise RuntimeError(f"request {self.rid}: {self.status.value} -> {status.value}")
        self.status = status


@dataclass(frozen=True)
class BatchRow:
    """One request's part of a micro-batch: tokens [start, end) of its sequence."""

    req: Req
    start: int
    end: int
    samples: bool  # the last position yields the request's next token
    epoch: int  # `req.num_retractions` at the time: a result of before a retraction is void
    input_logprobs: bool = False  # the row returns logprobs of its own input tokens


@dataclass
class ScheduleBatch:
    """A micro-batch, from the moment its plan is issued until its result is processed."""

    plan: StepPlan
    rows: list[BatchRow]
    issued_at: float = 0.0  # seconds, monotonic clock
    num_decode_rows: int = 0
    predicted_seconds: float = 0.0  # of the latency model, 0 without one

    @property
    def is_decode(self) -> bool:
        """Whether it has decode rows only."""
        return self.num_decode_rows == len(self.rows)

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens that it computes."""
        return sum(row.end - row.start for row in self.rows[self.num_decode_rows :])


@dataclass
class PlanDraft:
    """What becomes a `StepPlan`; filled while rows are admitted."""

    rows: list[BatchRow] = field(default_factory=list)
    slots: list[npt.NDArray[np.int32]] = field(default_factory=list)  # KV slots, a row each
    num_decode_rows: int = 0
    zero_states: list[int] = field(default_factory=list)
    copy_states: list[tuple[int, int]] = field(default_factory=list)
    track_states: list[tuple[int, int, int]] = field(default_factory=list)
    locked_states: list[TreeNode] = field(default_factory=list)  # copied from by this plan
