"""Structured output: grammars compiled off the scheduler's thread, masks made with the plan.

Stage 0 alone knows grammars. A request whose grammar is not compiled yet is not queued yet; when it
samples, the plan carries the mask of allowed tokens for its row. No stage can be ready earlier or
later than another.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sglang.srt.managers.schedule_batch import Req

MAX_GRAMMAR_CHARS = 256 * 1024
# One form of white space: where any is allowed, small models never leave it. A schema's own
# "x-guidance" wins.
_JSON_FORM: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarError(ValueError):
    """A schema, regex or grammar cannot be used; the message says why."""


class Matcher(Protocol):
    """The state of one request's grammar (llguidance's `LLMatcher`)."""

    def compute_bitmask(self) -> bytes:
        """Allowed next tokens, one bit each, lowest bit first."""

    def consume_token(self, token: int) -> bool:
        """Advance by a token; False when the grammar does not allow it."""

    def is_stopped(self) -> bool:
        """Whether nothing but the end can follow."""


class GrammarBackend:
    """Compiles grammars with llguidance (https://github.com/guidance-ai/llguidance)."""

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_token_ids: list[int]) -> None:
        self._tokenizer_file = tokenizer_file
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: Any = None

    def compile(self, kind: str, text: str) -> Matcher:
        """A matcher for a "json_schema", "regex" or "ebnf" text. Raises GrammarError."""
        if len(text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"{kind} must have at most {MAX_GRAMMAR_CHARS} characters")
        import llguidance
        from llguidance.gbnf_to_lark import any_to_lark

        convert: dict[str, Callable[[str], str]] = {
            "json_schema": lambda schema: llguidance.LLMatcher.grammar_from_json_schema(
                schema, defaults=_JSON_FORM
            ),
            "regex": llguidance.LLMatcher.grammar_from_regex,
            "ebnf": lambda ebnf: llguidance.LLMatcher.grammar_from_lark(any_to_lark(ebnf)),
        }
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        try:
            matcher = llguidance.LLMatcher(self._tokenizer, convert[kind](text))
        except Exception as error:  # the converters raise what they like
            raise GrammarError(f"{kind} cannot be used: {_first_line(error)}") from error
        if matcher.is_error():
            raise GrammarError(f"{kind} cannot be used: {_first_line(matcher.get_error())}")
        found: Matcher = matcher
        return found

    def _load_tokenizer(self) -> Any:
        import llguidance

        if not self._tokenizer_file.is_file():
            raise GrammarError(f"structured output needs {self._tokenizer_file.name} in the model")
        return llguidance.LLTokenizer(
            str(self._tokenizer_file),
            n_vocab=self._vocab_size,
            eos_token=self._eos_token_ids or None,
        )


@dataclass
class _Pending:
    req: Req
    future: Future[Matcher]


class GrammarManager:
    """Requests between arrival and queue while their grammars are compiled."""

    def __init__(self, backend: GrammarBackend | None) -> None:
        self._backend = backend
        self._executor: ThreadPoolExecutor | None = None
        self._pending: list[_Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, req: Req) -> None:
        """Start compiling a request's grammar. Raises GrammarError when there is no backend."""
        if self._backend is None:
            raise GrammarError("structured output is off (--grammar-backend none)")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        kind, text = grammar_of(req)
        self._pending.append(
            _Pending(req, self._executor.submit(self._backend.compile, kind, text))
        )

    def take_ready(self) -> list[tuple[Req, str | None]]:
        """Requests whose grammar is compiled, each with the reason when it cannot be used."""
        ready: list[_Pending] = []
        waiting: list[_Pending] = []
        for entry in self._pending:  # each future is asked once: it may be done a moment later
            (ready if entry.future.done() else waiting).append(entry)
        self._pending = waiting
        return [(entry.req, _settle(entry)) for entry in ready]

    def remove(self, req: Req) -> None:
        """Forget a request that was aborted meanwhile."""
        self._pending = [entry for entry in self._pending if entry.req is not req]


def grammar_of(req: Req) -> tuple[str, str]:
    """Kind and text of the grammar that a request asks for; ("", "") for none."""
    params = req.sampling_params
    for kind in ("json_schema", "regex", "ebnf"):
        text = getattr(params, kind)
        if text is not None:
            return kind, text
    return "", ""


def _settle(entry: _Pending) -> str | None:
    try:
        entry.req.grammar = entry.future.result()
    except GrammarError as error:
        return str(error)
    return None


def _first_line(error: object) -> str:
    return str(error).strip().splitlines()[0]
