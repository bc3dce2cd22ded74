"""`ServerArgs`: the launch configuration, one frozen dataclass.

The command line is generated from the fields: name, type and default of a field are those of its
flag, its metadata hold the rest. `resolve` returns a new, checked object; nothing is changed in
place. The child processes get the resolved object as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import types
import typing
from typing import Any, NoReturn

from sglang.srt import environ
from sglang.srt.utils.known_flags import SGLANG_FLAGS

TINY_HYBRID = "tiny-hybrid"
CPU_CHUNKED_PREFILL_SIZE = 512
CUDA_CHUNKED_PREFILL_SIZE = 8192
PAGE_SIZES = (1, 16, 64)
SECRET_FIELDS = ("api_key", "admin_api_key")


class ServerArgsError(ValueError):
    """A launch argument that can't be used; the message is one line naming it."""


def _arg(
    default: Any,
    help_text: str,
    *,
    group: str = "",
    choices: tuple[Any, ...] | None = None,
    aliases: tuple[str, ...] = (),
) -> Any:
    metadata = {"help": help_text, "group": group, "choices": choices, "aliases": aliases}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class ServerArgs:
    """Launch configuration in SGLang's names. A field with group "" stays in its predecessor's."""

    model_path: str = _arg(
        "",
        f"folder in Hugging Face format, hub name, or {TINY_HYBRID} for the embedded model",
        group="model",
        aliases=("--model",),
    )
    tokenizer_path: str | None = _arg(None, "folder of the tokenizer, when not the model's")
    served_model_name: str | None = _arg(None, "name in /v1/models (default: model path)")
    dtype: str = _arg(
        "auto",
        "dtype of weights and activations",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    device: str = _arg("auto", "where to run", choices=("auto", "cpu", "cuda"))
    load_format: str = _arg(
        "auto",
        "weights to load; dummy: random",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    context_length: int | None = _arg(None, "tokens of context (default: the model's)")
    chat_template: str | None = _arg(None, "jinja file or text (default: the model's)")
    tool_call_parser: str | None = _arg(
        None,
        "how the model writes tool calls; all of these read JSON and XML calls",
        choices=("qwen", "qwen25", "qwen3_coder", "hermes"),
    )
    reasoning_parser: str | None = _arg(
        None, "split <think> from the answer", choices=("qwen3", "deepseek-r1")
    )
    random_seed: int | None = _arg(None, "seed of the server (default: drawn at start)")

    host: str = _arg("127.0.0.1", "address to listen on", group="HTTP")
    port: int = _arg(30000, "port to listen on")
    api_key: str | None = _arg(None, "key that every route but health asks for")
    admin_api_key: str | None = _arg(None, "key that the administrative routes ask for")
    cors_allow_origins: str | None = _arg(
        None, "origins whose pages may read answers, with commas between (default: none)"
    )
    skip_server_warmup: bool = _arg(False, "do not run a request before being ready")
    stream_interval: int = _arg(1, "tokens between two pieces of a stream")
    enable_metrics: bool = _arg(False, "serve Prometheus metrics on /metrics")
    log_level: str = _arg(
        "info", "log level", choices=("debug", "info", "warning", "error", "critical")
    )
    decode_log_interval: int = _arg(40, "decode steps between two log lines")
    watchdog_timeout: float = _arg(300, "seconds without a sign of life before the server ends")

    pp_size: int = _arg(
        1, "pipeline stages", group="parallelism", aliases=("--pipeline-parallel-size", "--pp")
    )
    tp_size: int = _arg(
        1, "tensor parallel size; only 1", aliases=("--tensor-parallel-size", "--tp")
    )
    pp_max_micro_batch_size: int | None = _arg(None, "requests in one micro-batch")
    pp_async_batch_depth: int = _arg(0, "micro-batches in flight beyond one a stage")
    pp_trace: str | None = _arg(None, "folder for a trace of every micro-batch on every stage")
    nnodes: int = _arg(1, "machines that hold the stages")
    node_rank: int = _arg(0, "rank of this machine")
    dist_init_addr: str | None = _arg(
        None, "host:port where the stages meet", aliases=("--nccl-init-addr",)
    )
    dist_timeout: int | None = _arg(None, "seconds to wait for other stages (default: 300)")

    schedule_policy: str = _arg(
        "fcfs", "order of admission", group="schedule", choices=("fcfs", "lpm")
    )
    enable_dynamic_chunking: bool = _arg(False, "size prefill chunks by a measured latency model")
    chunked_prefill_size: int | None = _arg(
        None,
        f"tokens of a prefill chunk, -1 for none (default: {CPU_CHUNKED_PREFILL_SIZE} on CPU, "
        f"{CUDA_CHUNKED_PREFILL_SIZE} on GPU)",
    )
    enable_mixed_chunk: bool = _arg(False, "decode and prefill in one micro-batch")
    max_prefill_tokens: int = _arg(16384, "tokens of a prefill micro-batch")
    max_running_requests: int | None = _arg(None, "requests that run at once (default: by memory)")
    max_queued_requests: int | None = _arg(None, "requests that wait; more are answered with 503")
    attention_backend: str | None = _arg(
        None, "attention kernels", choices=("torch_native", "triton", "flashinfer")
    )
    sampling_backend: str | None = _arg(None, "sampling kernels", choices=("pytorch", "flashinfer"))
    grammar_backend: str = _arg(
        "llguidance", "what constrains structured output", choices=("llguidance", "none")
    )

    max_total_tokens: int | None = _arg(
        None, "slots of the KV pool (default: by memory)", group="memory"
    )
    mem_fraction_static: float | None = _arg(None, "share of memory for weights and pools")
    page_size: int = _arg(1, "tokens of a KV page", choices=PAGE_SIZES)
    disable_radix_cache: bool = _arg(False, "never reuse a prefix")
    max_mamba_cache_size: int | None = _arg(None, "slots of the Mamba pool (default: by memory)")
    mamba_radix_cache_strategy: str = _arg(
        "auto",
        "how states enter the prefix cache",
        choices=("auto", "no_buffer", "extra_buffer"),
    )
    mamba_full_memory_ratio: float = _arg(0.9, "memory of Mamba states to memory of KV")
    mamba_ssm_dtype: str = _arg(
        "float32", "dtype of recurrent states", choices=("float32", "bfloat16", "float16")
    )
    mamba_track_interval: int = _arg(256, "tokens between two cached states while decoding")

    def resolve(self) -> ServerArgs:
        """A checked copy with defaults filled in that depend on other fields or the machine.

        Raises ServerArgsError naming the flag, its value and its bound.
        """
        from sglang.srt.utils.check_args import check_server_args

        device = _detect_device() if self.device == "auto" else self.device
        model_path = _embedded_model() if self.model_path == TINY_HYBRID else self.model_path
        chunk = self.chunked_prefill_size
        if chunk is None:
            chunk = CPU_CHUNKED_PREFILL_SIZE if device == "cpu" else CUDA_CHUNKED_PREFILL_SIZE
        resolved = dataclasses.replace(
            self,
            device=device,
            model_path=model_path,
            tokenizer_path=self.tokenizer_path or model_path,
            served_model_name=self.served_model_name or self.model_path,
            chunked_prefill_size=chunk,
            dist_timeout=300 if self.dist_timeout is None else self.dist_timeout,
            random_seed=_draw_seed() if self.random_seed is None else self.random_seed,
        )
        check_server_args(resolved)
        return resolved

    def to_json(self) -> str:
        """All fields as one JSON object, keys included: for child processes, never for a log."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> ServerArgs:
        """The inverse of `to_json`. Raises ServerArgsError on an unknown field."""
        values = json.loads(text) if isinstance(text, str) else text
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ServerArgs:
        """Build from field names. Raises ServerArgsError naming a field we lack or a wrong type."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = typing.get_type_hints(cls)
        for name, value in values.items():
            if name not in fields:
                raise ServerArgsError(_unknown_flag(_flag(name)))
            allowed = _allowed_types(hints[name])
            if isinstance(value, bool) != (bool in allowed) or not isinstance(value, allowed):
                raise ServerArgsError(f"{_flag(name)}: wrong type, got {value!r}")
        return cls(**values)

    def public_dict(self) -> dict[str, Any]:
        """All fields but the keys: safe to show."""
        values = dataclasses.asdict(self)
        for name in SECRET_FIELDS:
            del values[name]
        return values

    def shared_settings(self) -> dict[str, Any]:
        """What all machines of a server must have been started with, by flag or variable."""
        shared = {_flag(name): getattr(self, name) for name in _SHARED_FIELDS}
        return {**shared, "SGLANG_PP_LAYER_PARTITION": environ.pp_layer_partition()}

    @property
    def local_pp_ranks(self) -> range:
        """The pipeline ranks that this machine runs: an equal share, in order of `node_rank`."""
        share = self.pp_size // self.nnodes
        return range(self.node_rank * share, (self.node_rank + 1) * share)


# What shapes the stages and their pools: the same on all machines of a server.
_SHARED_FIELDS = (
    "pp_size", "nnodes", "dtype", "load_format", "context_length", "page_size",
    "mamba_ssm_dtype", "max_total_tokens", "max_mamba_cache_size", "max_running_requests",
    "mamba_full_memory_ratio", "mamba_radix_cache_strategy", "disable_radix_cache",
)  # fmt: skip


def parse_server_args(argv: list[str]) -> ServerArgs:
    """Command line (and the YAML file that --config names) to checked `ServerArgs`.

    Raises ServerArgsError with one line; --help prints and exits.
    """
    parser = make_parser()
    try:
        namespace, unknown = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ServerArgsError(str(error)) from None
    for word in unknown:
        raise ServerArgsError(_unknown_flag(word.split("=")[0]))
    given = {key: value for key, value in vars(namespace).items() if key != "config"}
    try:
        environ.check_environment()
    except ValueError as error:
        raise ServerArgsError(str(error)) from None
    file_values = _read_config(namespace.config) if namespace.config else {}
    return ServerArgs.from_dict({**_torchrun_values(), **file_values, **given}).resolve()


def _torchrun_values() -> dict[str, Any]:
    """Flags that `torchrun` implies: each of its processes is one machine of the server.

    The port next to torchrun's own is where the stages meet.
    """
    place = environ.torchrun_place()
    if place is None or place.world_size == 1:
        return {}
    return {
        "nnodes": place.world_size,
        "node_rank": place.rank,
        "dist_init_addr": f"{place.master_addr}:{place.master_port + 1}",
    }


def make_parser() -> argparse.ArgumentParser:
    """The parser made from the fields of `ServerArgs`. Only flags that were given are set."""
    parser = _OneLineParser(
        prog="python -m sglang.launch_server",
        description="Serve a language model over HTTP.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", default=None, help="YAML file of flags; flags given win")
    group: Any = parser
    hints = typing.get_type_hints(ServerArgs)
    for field in dataclasses.fields(ServerArgs):
        if field.metadata["group"]:
            group = parser.add_argument_group(field.metadata["group"])
        names = (_flag(field.name), *field.metadata["aliases"])
        kind = _allowed_types(hints[field.name])[0]
        if kind is bool:
            group.add_argument(*names, dest=field.name, action="store_true", help=_help(field))
            continue
        choices = field.metadata["choices"]
        group.add_argument(
            *names,
            dest=field.name,
            type=kind,
            choices=choices,
            metavar=None if choices else kind.__name__.upper(),
            help=_help(field),
        )
    return parser


class _OneLineParser(argparse.ArgumentParser):
    """argparse prints its usage before an error; one line is easier to read in a log."""

    def error(self, message: str) -> NoReturn:
        raise ServerArgsError(message)


def _help(field: dataclasses.Field[Any]) -> str:
    text: str = field.metadata["help"].replace("%", "%%")
    shown = field.default not in (None, False, "")
    return f"{text} (default: {field.default})" if shown else text


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _allowed_types(hint: Any) -> tuple[type, ...]:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    # An int is a fine float; `float` stays first because it is what argparse converts to.
    return tuple(members) + ((int,) if float in members else ())


def _unknown_flag(flag: str) -> str:
    if flag in SGLANG_FLAGS:
        return f"{flag} is an SGLang flag that this runtime does not support"
    return f"unknown argument {flag}; see --help"


def _read_config(path: str) -> dict[str, Any]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file) or {}
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ServerArgsError(f"--config {path}: {reason}") from None
    if not isinstance(values, dict):
        raise ServerArgsError(f"--config {path}: must hold one mapping of flags")
    return {str(key).lstrip("-").replace("-", "_"): value for key, value in values.items()}


def _embedded_model() -> str:
    import sglang

    return os.path.join(os.path.dirname(sglang.__file__), "assets", TINY_HYBRID)


def _draw_seed() -> int:
    return int.from_bytes(os.urandom(4), "little") >> 1


def _detect_device() -> str:
    """`cuda` when a driver is there and the installed torch is built for it; imports no torch."""
    from importlib import metadata

    try:
        is_cpu_build = "+cpu" in metadata.version("torch")
    except metadata.PackageNotFoundError:
        is_cpu_build = True
    return "cuda" if os.path.exists("/dev/nvidiactl") and not is_cpu_build else "cpu"
