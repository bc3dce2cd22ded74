"""What a client may ask of the sampler, checked before it reaches the scheduler."""

from __future__ import annotations

import math

import msgspec

# A top_k of -1 means the whole vocabulary, as in SGLang.
TOP_K_ALL = -1
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
MAX_LOGIT_BIAS = 1024


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one request, in SGLang's names.

    `temperature` 0 is greedy. Penalties follow OpenAI's API (`frequency_penalty`,
    `presence_penalty` subtract from logits) and CTRL, arXiv:1909.05858 (`repetition_penalty`
    divides positive and multiplies negative logits). `min_p` is arXiv:2407.01082.
    `sampling_seed` fixes the random stream: the draw for output position i depends on
    (seed, i) alone, never on the batch. At most one of `json_schema`, `regex` and `ebnf`
    constrains the output.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    logit_bias: dict[int, float] = {}
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    @property
    def has_grammar(self) -> bool:
        """True when the output must follow a schema, regex or grammar."""
        return self.json_schema is not None or self.regex is not None or self.ebnf is not None

    @property
    def uses_penalties(self) -> bool:
        """True when the sampler needs the request's token history."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def verify(self, vocab_size: int) -> None:
        """Raise ValueError naming the field and its bound when a value is out of range."""
        for name, low, high in NUMBER_BOUNDS:
            _check_number(name, getattr(self, name), low, high)
        if self.top_k != TOP_K_ALL and self.top_k < 1:
            raise ValueError(f"top_k must be -1 (all) or at least 1, got {self.top_k}")
        if self.max_new_tokens is not None:
            _check_number("max_new_tokens", self.max_new_tokens, 0, 2**31 - 1)
            if self.min_new_tokens > self.max_new_tokens:
                raise ValueError(
                    f"min_new_tokens must be at most max_new_tokens "
                    f"({self.max_new_tokens}), got {self.min_new_tokens}"
                )
        if self.sampling_seed is not None:
            _check_number("sampling_seed", self.sampling_seed, -(2**63), 2**63 - 1)
        if sum(text is not None for text in (self.json_schema, self.regex, self.ebnf)) > 1:
            raise ValueError("only one of json_schema, regex and ebnf may be given")
        self._verify_stops(vocab_size)
        self._verify_logit_bias(vocab_size)

    def _verify_stops(self, vocab_size: int) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_CHARS:
                raise ValueError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
        for token_id in self.stop_token_ids:
            check_token_id("stop_token_ids", token_id, vocab_size)

    def _verify_logit_bias(self, vocab_size: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"logit_bias takes at most {MAX_LOGIT_BIAS} entries")
        for token_id, bias in self.logit_bias.items():
            check_token_id("logit_bias", token_id, vocab_size)
            _check_number(f"logit_bias[{token_id}]", bias, -100.0, 100.0)


# Field, lowest and highest value.
NUMBER_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 1e4),
    ("top_p", 1e-9, 1.0),
    ("top_k", -1, 2**31 - 1),
    ("min_p", 0.0, 1.0),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("min_new_tokens", 0, 2**31 - 1),
)


def check_token_id(field: str, token_id: int, vocab_size: int) -> None:
    """Raise ValueError when `token_id` is outside [0, vocab_size)."""
    if not 0 <= token_id < vocab_size:
        raise ValueError(f"{field} must hold token ids in [0, {vocab_size}), got {token_id}")


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value}")
