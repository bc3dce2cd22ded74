"""Requests of OpenAI's API as types, and the rules for fields that we don't have.

Every field of a body is in one of four groups: typed here, harmless (accepted, without effect),
unsupported (accepted only while it asks for nothing), or unknown. The last two give a 400 that
names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec

from sglang.srt.entrypoints.native_protocol import (
    check_n,
    convert,
    parse_logit_bias,
    schema_text,
)
from sglang.srt.managers.request_state import RequestError
from sglang.srt.sampling.sampling_params import SamplingParams

T = TypeVar("T", bound="SamplingFields")

MAX_CHAT_TOP_LOGPROBS = 20
# They describe the caller or tune a service we are not; an answer without them is still right.
_HARMLESS = frozenset(
    """user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options
    prompt_cache_retention verbosity stream_reasoning""".split()
)
# Field -> values that ask for nothing beyond null.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "cache_salt": (),
    "custom_logit_processor": (),
    "custom_params": (),
    "data_parallel_rank": (),
    "extra_key": (),
    "function_call": ("none",),
    "functions": ([],),
    "logit_processors": (),
    "lora_path": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "priority": (0,),
    "return_cached_tokens_details": (False,),
    "return_hidden_states": (False,),
    "session_params": ({},),
    "stop_regex": ([],),
    "structural_tag": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "web_search_options": (),
}


class StreamOptions(msgspec.Struct):
    """`include_usage`: a last chunk with the usage; `continuous_usage_stats`: one in each."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class ResponseFormat(msgspec.Struct):
    """What form the output must have; `json_schema` holds a `schema` and perhaps a name."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common: OpenAI's fields and SGLang's extras."""

    model: str = ""
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Any = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    rid: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    response_format: ResponseFormat | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None

    def sampling_params(self, max_new_tokens: int | None) -> SamplingParams:
        """The parameters in SGLang's names. Raises RequestError for a malformed field."""
        check_n(1 if self.n is None else self.n)
        values: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "min_new_tokens": self.min_tokens,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "spaces_between_special_tokens": self.spaces_between_special_tokens,
            "no_stop_trim": self.no_stop_trim,
            "sampling_seed": self.seed,
            "json_schema": self._json_schema(),
            "regex": self.regex,
            "ebnf": self.ebnf,
        }
        given = {name: value for name, value in values.items() if value is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = parse_logit_bias(self.logit_bias)
        return SamplingParams(max_new_tokens=max_new_tokens, **given)

    def _json_schema(self) -> str | None:
        """The schema that the output must follow, as JSON text."""
        form = self.response_format
        if form is None or form.type == "text":
            return None if self.json_schema is None else schema_text(self.json_schema)
        if self.json_schema is not None:
            raise RequestError("give response_format or json_schema", param="json_schema")
        if form.type == "json_object":
            return schema_text({"type": "object"})
        if form.json_schema is None or not isinstance(form.json_schema.get("schema"), dict):
            raise RequestError(
                "response_format of type json_schema needs json_schema.schema",
                param="response_format",
            )
        return schema_text(form.json_schema["schema"])


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or as token ids. Raises RequestError for a mixed list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(entry) for entry in self.prompt}
        if len(kinds) > 1:
            raise RequestError("prompt must hold one kind of entry", param="prompt")
        return [cast(list[int], self.prompt)] if int in kinds else cast(Any, list(self.prompt))


class ToolFunction(msgspec.Struct):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """An entry of `tools`."""

    function: ToolFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None


def parse_body(body: dict[str, Any], kind: type[T]) -> T:
    """Body to request. Raises RequestError naming the field that is wrong, or not supported."""
    known = {name: body[name] for name in kind.__struct_fields__ if name in body}
    check_other_fields({name: value for name, value in body.items() if name not in known})
    request: T = convert(known, kind)
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    return request


def check_other_fields(others: Mapping[str, Any]) -> None:
    """Raise RequestError for a field that asks for what we don't do, or that nobody knows."""
    for name, value in others.items():
        if name in _HARMLESS or (name in _UNSUPPORTED and value is None):
            continue
        if name not in _UNSUPPORTED:
            raise RequestError(f"unknown field {name}", param=name)
        if value not in _UNSUPPORTED[name]:
            raise RequestError(f"{name} is not supported by this server", param=name)


def message_text(message: ChatMessage) -> str:
    """Content of a message as text. Raises RequestError for a part that is not text."""
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise RequestError(f"{name} of a message is not supported", param="messages")
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"message content of type {part.get('type')} is not supported, only text is",
                param="messages",
            )
        texts.append(part["text"])
    return "".join(texts)
