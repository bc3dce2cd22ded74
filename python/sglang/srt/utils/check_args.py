"""Bounds and conflicts of launch arguments. Pure: no device, no files but the folders named."""

from __future__ import annotations

import os
import typing
from dataclasses import fields

from sglang.srt.models.gguf_file import PACKAGED

if typing.TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

# (field, lowest, highest); None in the field is always fine.
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("context_length", 1, 2**31 - 1),
    ("random_seed", 0, 2**63 - 1),
    ("port", 1, 65535),
    ("stream_interval", 1, 1 << 20),
    ("decode_log_interval", 1, 1 << 30),
    ("watchdog_timeout", 1, 1e9),
    ("pp_size", 1, 1024),
    ("pp_max_micro_batch_size", 1, 1 << 20),
    ("pp_async_batch_depth", 0, 64),
    ("nnodes", 1, 1024),
    ("dist_timeout", 1, 10**9),
    ("max_prefill_tokens", 1, 2**31 - 1),
    ("max_running_requests", 1, 1 << 20),
    ("max_queued_requests", 0, 1 << 30),
    ("max_total_tokens", 1, 2**31 - 1),
    ("mem_fraction_static", 0.01, 0.99),
    ("max_mamba_cache_size", 1, 1 << 30),
    ("mamba_full_memory_ratio", 0.01, 100),
    ("mamba_track_interval", 1, 1 << 30),
)


def check_server_args(args: ServerArgs) -> None:
    """Raise ServerArgsError naming the first flag that is out of bounds or conflicts."""
    _check_bounds(args)
    _check_choices(args)
    _check_model_path(args)
    _check_chunking(args)
    _check_nodes(args)
    _check_backends(args)
    if args.tp_size != 1:
        _refuse(f"--tp-size must be 1, got {args.tp_size}: use --pp-size for more devices")
    if args.mamba_radix_cache_strategy == "extra_buffer" and args.disable_radix_cache:
        _refuse(
            "--mamba-radix-cache-strategy extra_buffer with --disable-radix-cache would hold "
            "slots for a cache that is off: drop one of the two"
        )
    for name in ("api_key", "admin_api_key"):
        if getattr(args, name) == "":
            _refuse(f"--{name.replace('_', '-')} must not be empty")


def _check_bounds(args: ServerArgs) -> None:
    for name, low, high in _BOUNDS:
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            _refuse(f"--{name.replace('_', '-')} must be in [{low:g}, {high:g}], got {value}")


def _check_choices(args: ServerArgs) -> None:
    for field in fields(args):
        choices, value = field.metadata["choices"], getattr(args, field.name)
        if choices and value is not None and value not in choices:
            known = ", ".join(str(choice) for choice in choices)
            _refuse(f"--{field.name.replace('_', '-')} must be one of {known}, got {value}")


def _check_model_path(args: ServerArgs) -> None:
    if not args.model_path:
        _refuse("--model-path is required (tiny-hybrid names the embedded model)")
    if args.model_path in PACKAGED:
        return
    # A hub name is owner/name; whatever else looks like a path must be one, or a GGUF file.
    looks_local = args.model_path.startswith((".", "/", "~")) or args.model_path.count("/") != 1
    path = os.path.expanduser(args.model_path)
    is_model = os.path.isdir(path) or (path.endswith(".gguf") and os.path.isfile(path))
    if looks_local and not is_model:
        _refuse(f"--model-path {args.model_path}: no such folder")


def _check_chunking(args: ServerArgs) -> None:
    chunk = args.chunked_prefill_size
    if chunk is None:
        return
    if chunk != -1 and chunk < 1:
        _refuse(f"--chunked-prefill-size must be -1 or at least 1, got {chunk}")
    if args.enable_dynamic_chunking and chunk == -1:
        _refuse("--enable-dynamic-chunking needs a --chunked-prefill-size other than -1")


def _check_backends(args: ServerArgs) -> None:
    """SGLang's names are known; those whose kernels are not here are refused, not replaced."""
    if args.attention_backend not in (None, "torch_native"):
        _refuse(f"--attention-backend {args.attention_backend} is not here: use torch_native")
    if args.sampling_backend not in (None, "pytorch"):
        _refuse(f"--sampling-backend {args.sampling_backend} is not here: use pytorch")


def _check_nodes(args: ServerArgs) -> None:
    if not 0 <= args.node_rank < args.nnodes:
        _refuse(f"--node-rank must be in [0, {args.nnodes - 1}], got {args.node_rank}")
    if args.pp_size % args.nnodes:
        _refuse(f"--pp-size {args.pp_size} must be a multiple of --nnodes {args.nnodes}")
    if args.nnodes > 1 and not args.dist_init_addr:
        _refuse("--nnodes above 1 needs --dist-init-addr host:port")
    if args.dist_init_addr:
        host, _, port = args.dist_init_addr.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            _refuse(f"--dist-init-addr must be host:port, got {args.dist_init_addr}")


def _refuse(message: str) -> typing.NoReturn:
    from sglang.srt.server_args import ServerArgsError

    raise ServerArgsError(message)
