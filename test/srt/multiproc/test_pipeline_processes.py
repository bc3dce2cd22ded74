"""Real stages in processes of their own: they overlap, and they fail in the open."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.server_process import assert_gone, server_process
from support.tiny_models import make_model

pytestmark = pytest.mark.slow

MODULE = "sglang.launch_server"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("pipe"), "deep")


def generate(url: str, ids: list[int], max_new_tokens: int) -> tuple[int, dict[str, Any]]:
    """HTTP status and answer of one greedy request."""
    body = {
        "input_ids": ids,
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
    }
    request = urllib.request.Request(
        url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_one_long_prompt_keeps_both_stages_busy(model: Path, tmp_path: Path) -> None:
    """vLLM 27462: without micro-batches the pipeline runs one batch at a time.

    While stage 1 computes a chunk stage 0 computes the next one: the trace shows chunks of the
    same prompt that overlap in time.
    """
    trace = tmp_path / "trace.json"
    flags = ("--pp-size", "2", "--device", "cpu", "--chunked-prefill-size", "256")
    with server_process(MODULE, model, *flags, "--pp-trace", str(trace)) as server:
        server.wait_ready(40)
        status, answer = generate(server.url, [i % 250 for i in range(1800)], 4)
        assert status == 200
        assert answer["meta_info"]["completion_tokens"] == 4
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 0
    events = json.loads(trace.read_text())["traceEvents"]
    chunks = [
        e for e in events
        if e["ph"] == "X" and e["name"] != "queued" and e["args"]["prefill_tokens"] == 256
    ]  # fmt: skip
    by_stage = {
        stage: {e["args"]["microbatch"]: e for e in chunks if e["tid"] == stage} for stage in (0, 1)
    }
    assert len(by_stage[0]) == len(by_stage[1]) == 7
    overlapping = sum(
        by_stage[0][n + 1]["ts"] < by_stage[1][n]["ts"] + by_stage[1][n]["dur"]
        for n in by_stage[1]
        if n + 1 in by_stage[0]
    )
    assert overlapping >= 5, "stage 0 waited for stage 1 before it went on"


@pytest.mark.parametrize(
    "how, words", [(signal.SIGKILL, "stage 1"), (signal.SIGSTOP, "stage 1 gave no sign of life")]
)
def test_dead_or_hung_stage_answers_everybody_and_ends_the_server(
    model: Path, how: signal.Signals, words: str
) -> None:
    """SGLang 17941, 6624: nobody waits for ever, and the log names the stage.

    A killed stage is noticed at once, a stopped one after `--watchdog-timeout`. Requests in flight
    get an error, `/health` says 503 until all processes have ended, with a non-zero status.
    """
    flags = ("--pp-size", "3", "--device", "cpu", "--watchdog-timeout", "6")
    with server_process(MODULE, model, *flags) as server:
        server.wait_ready(40)
        pids = server.child_pids()
        assert len(pids) == 3
        answers: list[tuple[int, dict[str, Any]]] = []
        client = threading.Thread(
            target=lambda: answers.append(generate(server.url, [5] * 20, 1900))
        )
        client.start()
        time.sleep(0.5)
        os.kill(pids[1], how)
        killed = time.monotonic()
        client.join(30)
        seconds = time.monotonic() - killed
        assert answers, "the request was never answered"
        status, answer = answers[0]
        assert status >= 500
        assert "stage 1" in json.dumps(answer)
        assert seconds < (5 if how == signal.SIGKILL else 6 + 5)
        assert server.wait_end(20) != 0
        assert any(words in line for line in server.lines), server.lines[-5:]
        assert_gone(pids)


def test_three_stages_give_the_tokens_of_one(model: Path) -> None:
    """Over real sockets, with prompts in many chunks, at once."""
    prompts = [[(7 * i + k) % 250 for i in range(n)] for k, n in enumerate((3, 64, 65, 300))]
    found = []
    for pp_size in ("1", "3"):
        flags = ("--pp-size", pp_size, "--device", "cpu", "--chunked-prefill-size", "64")
        with server_process(MODULE, model, *flags, SGLANG_CHECK_MEMORY="1") as server:
            server.wait_ready(40)
            answers: dict[int, list[int]] = {}

            def ask(number: int, url: str = server.url, kept: dict[int, Any] = answers) -> None:
                kept[number] = generate(url, prompts[number], 12)[1]["output_ids"]

            clients = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
            for client in clients:
                client.start()
            for client in clients:
                client.join(60)
            found.append([answers[i] for i in range(len(prompts))])
    assert found[0] == found[1]
