"""The load generator against a server of fake stages, over each API."""

from __future__ import annotations

import json

import pytest

from sglang.bench_serving import Outcome, main, make_parser, make_prompts, summarize
from support.byte_tokenizer import CHAT_TEMPLATE, make_backend
from support.server_process import server_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_backend().save(str(folder / "tokenizer.json"))
    flags = ("--chat-template", CHAT_TEMPLATE)
    with server_process("support.fake_server", folder, *flags, FAKE_STAGE_DELAY="0.001") as running:
        running.wait_ready()
        yield running.url


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_every_request_is_counted(url, backend, tmp_path, capsys):
    file = tmp_path / "out.jsonl"
    flags = "--num-prompts 6 --random-input-len 20 --random-output-len 12 --random-range-ratio 1"
    words = ["--base-url", url, "--backend", backend, "--output-file", str(file), "--disable-tqdm"]
    assert main([*words, *flags.split()]) == 0
    figures = json.loads(file.read_text())
    assert figures["completed"] == 6 and figures["failed"] == 0
    assert figures["total_output_tokens"] == 72
    assert 0 < figures["mean_ttft_ms"] <= figures["p99_ttft_ms"] <= figures["p99_e2e_latency_ms"]
    assert "output throughput" in capsys.readouterr().out


def test_failed_requests_are_counted_and_shown(url, capsys):
    words = ["--base-url", url, "--num-prompts", "2", "--random-input-len", "9"]
    extra = ["--warmup-requests", "0", "--extra-request-body", '{"nonsense": 1}', "--disable-tqdm"]
    assert main([*words, *extra]) == 1
    assert "nonsense" in capsys.readouterr().err


def test_server_that_is_not_there_is_one_line(capsys):
    assert main(["--base-url", "http://127.0.0.1:9"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_shared_prefix_groups_share_their_prefix():
    flags = "--dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-prompts-per-group 3"
    flags += " --gsp-system-prompt-len 8 --gsp-question-len 4"
    prompts = make_prompts(make_parser().parse_args(flags.split()), 100)
    assert len(prompts) == 6
    assert len({tuple(prompt.ids[:8]) for prompt in prompts}) == 2
    assert len({tuple(prompt.ids) for prompt in prompts}) == 6


def test_time_per_token_excludes_the_first():
    outcome = Outcome(5, output_len=11, latency=3.0, ttft=1.0, gaps=[0.2] * 10)
    figures = summarize(make_parser().parse_args([]), [outcome], 4.0)
    assert figures["mean_tpot_ms"] == pytest.approx(200)
    assert figures["output_throughput"] == pytest.approx(11 / 4)
