"""The command line: SGLang's names and defaults, one clear line for everything else."""

from __future__ import annotations

import dataclasses

import pytest

from sglang.srt import environ
from sglang.srt.server_args import ServerArgs, ServerArgsError, make_parser, parse_server_args
from sglang.srt.utils.known_flags import SGLANG_FLAGS

MODEL = ["--model-path", "owner/name"]


def parse(*argv: str) -> ServerArgs:
    return parse_server_args([*MODEL, *argv])


def test_defaults_are_sglangs():
    args = parse("--device", "cpu")
    assert (args.host, args.port, args.page_size) == ("127.0.0.1", 30000, 1)
    assert (args.schedule_policy, args.stream_interval) == ("fcfs", 1)
    assert (args.mamba_full_memory_ratio, args.mamba_track_interval) == (0.9, 256)
    assert (args.pp_async_batch_depth, args.watchdog_timeout) == (0, 300)
    assert args.max_running_requests is None
    assert args.served_model_name == "owner/name"
    assert args.chunked_prefill_size == 512


def test_gpu_has_longer_chunks():
    assert parse("--device", "cuda").chunked_prefill_size == 8192


def test_short_names_and_equals_sign():
    args = parse_server_args(
        ["--model=owner/name", "--pp", "2", "--tp-size=1", "--disable-radix-cache"]
    )
    assert (args.pp_size, args.disable_radix_cache) == (2, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--quantization", "fp8"], ["--quantization", "SGLang flag", "not support"]),
        (["--trust-remote-code"], ["--trust-remote-code", "SGLang flag"]),
        (["--no-such-flag=1"], ["--no-such-flag", "unknown"]),
        (["--pp-siz", "2"], ["--pp-siz", "unknown"]),
        (["--pp-size", "0"], ["--pp-size", "[1,"]),
        (["--pp-size", "two"], ["--pp-size", "two"]),
        (["--tp-size", "2"], ["--tp-size", "1"]),
        (["--page-size", "3"], ["--page-size", "3"]),
        (["--port", "70000"], ["--port", "65535"]),
        (["--chunked-prefill-size", "0"], ["--chunked-prefill-size", "-1"]),
        (["--attention-backend", "triton"], ["--attention-backend triton", "torch_native"]),
        (["--sampling-backend", "flashinfer"], ["--sampling-backend flashinfer", "pytorch"]),
        (
            ["--chunked-prefill-size", "-1", "--enable-dynamic-chunking"],
            ["--enable-dynamic-chunking"],
        ),
        (["--mem-fraction-static", "1.5"], ["--mem-fraction-static"]),
        (["--mem-fraction-static", "nan"], ["--mem-fraction-static"]),
        (["--nnodes", "2"], ["--nnodes"]),
        (["--nnodes", "2", "--pp-size", "2"], ["--dist-init-addr"]),
        (["--nnodes", "2", "--pp-size", "2", "--dist-init-addr", "here"], ["host:port"]),
        (["--node-rank", "1"], ["--node-rank"]),
        (["--api-key", ""], ["--api-key"]),
        (
            ["--mamba-radix-cache-strategy", "extra_buffer", "--disable-radix-cache"],
            ["extra_buffer", "--disable-radix-cache"],
        ),
    ],
)
def test_bad_argument_is_refused_in_one_line(argv, words):
    with pytest.raises(ServerArgsError) as caught:
        parse(*argv)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("path", ["/no/such/folder", "./nothing", "nothing"])
def test_missing_folder_is_named(path):
    with pytest.raises(ServerArgsError, match=path):
        parse_server_args(["--model-path", path])


def test_model_path_is_required():
    with pytest.raises(ServerArgsError, match="--model-path is required"):
        parse_server_args([])


def test_json_round_trip_keeps_every_field():
    args = parse("--pp-size", "3", "--api-key", "k", "--mem-fraction-static", "0.4")
    assert ServerArgs.from_json(args.to_json()) == args


def test_public_dict_has_no_keys():
    text = str(parse("--api-key", "secret1", "--admin-api-key", "secret2").public_dict())
    assert "secret" not in text


def test_config_file_is_read_and_flags_win(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("pp-size: 2\nport: 1234\nenable-metrics: true\nmem-fraction-static: 1e-1\n")
    path.write_text("pp-size: 2\nport: 1234\nenable-metrics: true\n")
    args = parse("--config", str(path), "--port", "4321")
    assert (args.pp_size, args.port, args.enable_metrics) == (2, 4321, True)


@pytest.mark.parametrize("line", ["pp-size: two", "no-such: 1", "quantization: fp8", "- 1", "a: ["])
def test_bad_config_file_is_refused(tmp_path, line):
    path = tmp_path / "config.yaml"
    path.write_text(line + "\n")
    with pytest.raises(ServerArgsError):
        parse("--config", str(path))


def test_no_flag_of_ours_is_listed_as_unsupported():
    ours = {name for action in make_parser()._actions for name in action.option_strings}
    assert not ours & SGLANG_FLAGS


def test_help_names_every_field():
    text = make_parser().format_help()
    for field in dataclasses.fields(ServerArgs):
        assert "--" + field.name.replace("_", "-") in text


@pytest.mark.parametrize("value", ["0", "1.5", "x", "-1"])
def test_smooth_factor_outside_its_bounds_is_refused(monkeypatch, value):
    monkeypatch.setenv("SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR", value)
    with pytest.raises(ServerArgsError, match="SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR"):
        parse()


def test_environment_is_typed(monkeypatch):
    monkeypatch.setenv("SGLANG_CHECK_MEMORY", "1")
    assert environ.SGLANG_CHECK_MEMORY.get() is True
    assert environ.SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR.get() == 0.75


def test_stages_are_shared_among_nodes():
    argv = ["--nnodes", "2", "--node-rank", "1", "--pp-size", "4", "--dist-init-addr", "h:1"]
    assert list(parse(*argv).local_pp_ranks) == [2, 3]


def test_torchrun_says_who_is_who(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of torchrun is one machine of the server; flags given go before."""
    places = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0",
              "MASTER_ADDR": "first", "MASTER_PORT": "29400"}  # fmt: skip
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    args = parse_server_args(["--model-path", "tiny-hybrid", "--pp-size", "4"])
    assert (args.nnodes, args.node_rank, args.dist_init_addr) == (2, 1, "first:29401")
    assert list(args.local_pp_ranks) == [2, 3]
    given = parse_server_args(
        ["--model-path", "tiny-hybrid", "--pp-size", "4", "--dist-init-addr", "other:5"]
    )
    assert given.dist_init_addr == "other:5"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert parse_server_args(["--model-path", "tiny-hybrid"]).nnodes == 1
