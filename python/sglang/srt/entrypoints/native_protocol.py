"""SGLang's native `/generate`: its JSON to checked inputs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from sglang.srt.managers.request_state import GenerateInput, RequestError
from sglang.srt.managers.tokenizer_manager import MAX_BATCH_SIZE
from sglang.srt.sampling.sampling_params import SamplingParams

MAX_N = 128
# Fields of SGLang's that ask for something we don't do: fine while they ask for nothing.
_UNSUPPORTED_FIELDS = frozenset(
    """image_data video_data audio_data modalities input_embeds lora_path session_params
    custom_logit_processor return_hidden_states return_routed_experts bootstrap_host bootstrap_port
    bootstrap_room data_parallel_rank priority extra_key positional_embed_overrides""".split()
)
_IGNORED_FIELDS = frozenset({"log_metrics", "stream_output", "model", "no_logs", "conversation_id"})
_UNSUPPORTED_PARAMS = frozenset(
    """structural_tag stop_regex custom_params beam_width stream_interval""".split()
)


class GenerateBody(msgspec.Struct):
    """Body of `/generate`. A list of prompts makes a batch; other fields may be lists beside it."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False


@dataclasses.dataclass
class GenerateCall:
    """A parsed `/generate`: `inputs` holds n outputs for each prompt, prompt by prompt."""

    inputs: list[GenerateInput]
    is_single: bool
    stream: bool
    return_text_in_logprobs: bool


def parse_generate(body: dict[str, Any]) -> GenerateCall:
    """Parse the body of `/generate`. Raises RequestError naming the field at fault."""
    known = {name: body[name] for name in GenerateBody.__struct_fields__ if name in body}
    _check_other_fields({name: value for name, value in body.items() if name not in known})
    raw = convert(known, GenerateBody)
    prompts, is_batch = _prompts(raw)
    inputs: list[GenerateInput] = []
    num_outputs = 0
    for i, prompt in enumerate(prompts):
        params, num, is_limited = parse_sampling_params(
            _item(raw, "sampling_params", i, len(prompts))
        )
        num_outputs += num
        if num_outputs > MAX_BATCH_SIZE:
            raise RequestError(f"a call may ask for at most {MAX_BATCH_SIZE} outputs", param="n")
        rid = _rid(raw, i, is_batch, len(prompts))
        for j in range(num):
            item = GenerateInput(
                vary_seed(params, j),
                rid=rid if rid is None or num == 1 else f"{rid}_{j}",
                clamp_max_new_tokens=not is_limited,
                return_logprob=bool(_item(raw, "return_logprob", i, len(prompts))),
                logprob_start_len=_or(_item(raw, "logprob_start_len", i, len(prompts)), -1),
                top_logprobs_num=_or(_item(raw, "top_logprobs_num", i, len(prompts)), 0),
                token_ids_logprob=_token_ids_logprob(raw, i, len(prompts)),
                stream=raw.stream,
            )
            setattr(item, "text" if isinstance(prompt, str) else "input_ids", prompt)
            inputs.append(item)
    is_single = not is_batch and num_outputs == 1
    return GenerateCall(inputs, is_single, raw.stream, raw.return_text_in_logprobs)


def parse_sampling_params(raw: dict[str, Any] | None) -> tuple[SamplingParams, int, bool]:
    """SGLang's `sampling_params` to (parameters, n, whether the client set a length limit).

    Raises RequestError naming an unknown or unsupported parameter, or one of the wrong type.
    """
    values = dict(raw or {})
    num = values.pop("n", 1)
    if num is None:
        num = 1
    check_n(num)
    for name in sorted(values.keys() & _UNSUPPORTED_PARAMS):
        if values.pop(name) is not None:
            raise RequestError(f"sampling parameter {name} is not supported", param=name)
    unknown = sorted(values.keys() - set(SamplingParams.__struct_fields__))
    if unknown:
        raise RequestError(f"unknown sampling parameter {unknown[0]}", param=unknown[0])
    is_limited = "max_new_tokens" in values
    rest_of_context = is_limited and values["max_new_tokens"] is None
    values = {name: value for name, value in values.items() if value is not None}
    if rest_of_context:
        values["max_new_tokens"] = None
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    if "json_schema" in values:
        values["json_schema"] = schema_text(values["json_schema"])
    if "logit_bias" in values:
        values["logit_bias"] = parse_logit_bias(values["logit_bias"])
    return convert(values, SamplingParams), num, is_limited


def parse_logit_bias(raw: Any) -> dict[int, float]:
    """JSON's string keys to token ids. Raises RequestError naming the key at fault."""
    if not isinstance(raw, dict):
        raise RequestError("logit_bias must be an object of token id to bias", param="logit_bias")
    biases = {}
    for key, value in raw.items():
        digits = str(key).removeprefix("-")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not digits.isascii() or not digits.isdigit() or len(digits) > 9 or not is_number:
            raise RequestError(
                f"logit_bias must map token ids to numbers, got {key!r}", param="logit_bias"
            )
        biases[int(key)] = float(value)
    return biases


def is_batch_of_ids(field: str, value: list[Any]) -> bool:
    """Whether `value` is a list of lists. Raises RequestError when it mixes ids and lists."""
    num_lists = sum(isinstance(entry, list) for entry in value)
    if num_lists not in (0, len(value)):
        raise RequestError(f"{field} must not mix token ids and lists", param=field)
    return num_lists > 0


def schema_text(schema: Any) -> str:
    """A JSON schema, given as an object or as text, as text. Raises RequestError for others."""
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, (dict, bool)):
        raise RequestError("json_schema must be an object or JSON text", param="json_schema")
    return json.dumps(schema)


def check_n(num: Any) -> None:
    """Raise RequestError unless `num` is a number of outputs that may be asked for."""
    if not isinstance(num, int) or isinstance(num, bool) or not 1 <= num <= MAX_N:
        raise RequestError(f"n must be an integer in [1, {MAX_N}], got {num}", param="n")


def vary_seed(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of output `index` of several: with a fixed seed, each gets its own."""
    if params.sampling_seed is None or index == 0:
        return params
    seed = (params.sampling_seed + index + 2**63) % 2**64 - 2**63  # wraps like an int64
    return msgspec.structs.replace(params, sampling_seed=seed)


def convert(values: Any, kind: Any) -> Any:
    """`msgspec.convert` with an error that names the field. Raises RequestError."""
    try:
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        reason, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        message = f"{field}: {reason[:1].lower()}{reason[1:]}" if field else reason
        raise RequestError(message, param=field.split("[")[0] or None) from None


def _check_other_fields(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in _IGNORED_FIELDS:
            continue
        if name not in _UNSUPPORTED_FIELDS:
            raise RequestError(f"unknown field {name}", param=name)
        if value not in (None, False, [], {}):
            raise RequestError(f"{name} is not supported", param=name)


def _prompts(raw: GenerateBody) -> tuple[list[Any], bool]:
    if (raw.text is None) == (raw.input_ids is None):
        raise RequestError("give either text or input_ids", param="text")
    if isinstance(raw.text, str):
        return [raw.text], False
    if raw.text is not None:
        prompts: list[Any] = raw.text
    else:
        assert raw.input_ids is not None
        if not is_batch_of_ids("input_ids", raw.input_ids):
            return [raw.input_ids], False
        prompts = raw.input_ids
    if not 0 < len(prompts) <= MAX_BATCH_SIZE:
        raise RequestError(f"a batch has 1 to {MAX_BATCH_SIZE} prompts, got {len(prompts)}")
    return prompts, True


def _item(raw: GenerateBody, name: str, index: int, num_prompts: int) -> Any:
    """Field `name` for prompt `index`; a list holds one entry a prompt."""
    value = getattr(raw, name)
    if not isinstance(value, list):
        return value
    if len(value) != num_prompts:
        raise RequestError(f"{name} has {len(value)} entries for {num_prompts} prompts", param=name)
    return value[index]


def _token_ids_logprob(raw: GenerateBody, index: int, num_prompts: int) -> list[int]:
    value: Any = raw.token_ids_logprob or []
    if is_batch_of_ids("token_ids_logprob", value):
        value = _item(raw, "token_ids_logprob", index, num_prompts)
    return list(value)


def _rid(raw: GenerateBody, index: int, is_batch: bool, num_prompts: int) -> str | None:
    if isinstance(raw.rid, str) and is_batch:
        return f"{raw.rid}_{index}"
    rid: str | None = _item(raw, "rid", index, num_prompts)
    return rid


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
