"""A real server of two stages on a tiny random model, through OpenAI's client and plain HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Literal

import httpx
import openai
import psutil
import pydantic
import pytest

from support.server_process import (
    PYTHON_ROOT,
    TEST_ROOT,
    assert_gone,
    assert_pools_empty,
    server_process,
)

pytestmark = pytest.mark.slow

MODULE = "sglang.launch_server"
FLAGS = ("--device", "cpu", "--pp-size", "2", "--max-total-tokens", "4096")
LONG = {"max_new_tokens": 1500, "temperature": 0, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "héllo 🙂"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    script = TEST_ROOT / "support" / "tiny_models.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(model):
    flags = (*FLAGS, "--max-running-requests", "4", "--max-queued-requests", "8")
    with server_process(
        MODULE,
        model,
        *flags,
        "--enable-metrics",
        "--tool-call-parser",
        "qwen",
        SGLANG_CHECK_MEMORY="1",
    ) as it:
        it.wait_ready(40)
        yield it


@pytest.fixture(autouse=True)
def pools_are_empty_afterwards(request):
    yield
    if "server" in request.fixturenames:
        assert_pools_empty(request.getfixturevalue("server").url)


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0)


def generate(server, **body) -> dict:
    response = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_chat_and_its_stream_agree(client):
    options = {"model": "m", "messages": MESSAGES, "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**options)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 60
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_stop_string_in_a_stream_ends_where_the_unstreamed_text_ends(client):
    options = {"model": "m", "prompt": "abc", "max_tokens": 80, "temperature": 0}
    text = client.completions.create(**options).choices[0].text
    stop = next(char for char in text[5:] if char.isascii())
    whole = client.completions.create(**options, stop=stop).choices[0]
    chunks = list(client.completions.create(**options, stop=stop, stream=True))
    assert whole.finish_reason == "stop"
    assert whole.text == text[: text.index(stop)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text


def test_second_identical_prompt_is_reused_with_the_same_answer(client):
    prompt = list(range(200)) * 2
    options = {"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    first, second = (client.completions.create(**options) for _ in range(2))
    assert second.usage.prompt_tokens_details.cached_tokens >= 256
    assert first.choices[0].text == second.choices[0].text


def test_logprobs_have_one_entry_a_token(client):
    answer = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=7, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in content)


def test_echo_scores_a_prompt_without_generating(client):
    answer = client.completions.create(
        model="m", prompt="hello", echo=True, logprobs=1, max_tokens=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == list("hello")
    assert logprobs.token_logprobs[0] is None and max(logprobs.token_logprobs[1:]) < 0


def test_seed_gives_the_same_text_alone_and_in_company(server):
    params = {"max_new_tokens": 24, "temperature": 1.0, "sampling_seed": 11, "ignore_eos": True}
    alone = generate(server, text="seeded", sampling_params=params)["output_ids"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        noise = {"max_new_tokens": 40, "temperature": 1.0, "ignore_eos": True}
        for i in range(3):
            pool.submit(generate, server, text=f"noise {i}", sampling_params=noise)
        time.sleep(0.05)
        together = generate(server, text="seeded", sampling_params=params)["output_ids"]
    assert together == alone
    assert (
        generate(server, text="seeded", sampling_params={**params, "sampling_seed": 12})[
            "output_ids"
        ]
        != alone
    )


def test_abort_of_a_running_request(server):
    outcome: list = []
    body = {"text": "x", "rid": "mine", "sampling_params": LONG}
    thread = threading.Thread(target=lambda: outcome.append(generate(server, **body)))
    thread.start()
    time.sleep(0.4)
    httpx.post(f"{server.url}/abort_request", json={"rid": "mine"})
    thread.join(10)
    meta = outcome[0]["meta_info"]
    assert meta["finish_reason"]["type"] == "abort" and meta["completion_tokens"] < 1500


def test_clients_that_vanish_do_not_keep_their_slots(server):
    for _ in range(6):
        with httpx.Client() as client:
            body = {"text": "x", "stream": True, "sampling_params": LONG}
            with client.stream("POST", f"{server.url}/generate", json=body) as response:
                next(response.iter_lines())
    start = time.monotonic()
    generate(server, text="next", sampling_params={"max_new_tokens": 2})
    assert time.monotonic() - start < 5


def test_full_queue_is_503_and_accepted_requests_are_answered(server):
    params = {"max_new_tokens": 60, "ignore_eos": True}

    def call(i: int) -> httpx.Response:
        body = {"text": f"{i}", "sampling_params": params}
        return httpx.post(f"{server.url}/generate", json=body, timeout=60)

    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        responses = list(pool.map(call, range(30)))
    statuses = {response.status_code for response in responses}
    assert statuses == {200, 503}
    refused = next(r for r in responses if r.status_code == 503)
    assert "retry-after" in refused.headers


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [99999], "sampling_params": {"max_new_tokens": 2}},
        {"text": "a", "sampling_params": {"stop_token_ids": [-1]}},
        {"text": "a", "sampling_params": {"logit_bias": {"99999": 1}}},
        {"text": "a", "return_logprob": True, "top_logprobs_num": 10**6},
        {"text": "a", "return_logprob": True, "token_ids_logprob": [99999]},
        {"text": "a" * 5000},
        {"text": "a", "sampling_params": {"n": 5_000_000}},
    ],
)
def test_poison_is_400_and_the_next_request_is_served(server, body):
    assert httpx.post(f"{server.url}/generate", json=body).status_code == 400
    assert generate(server, text="ok", sampling_params={"max_new_tokens": 1})["output_ids"]


def test_every_parameter_reaches_the_sampler(server):
    params = {
        "max_new_tokens": 6,
        "min_new_tokens": 3,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.2,
        "stop_token_ids": [5],
        "logit_bias": {"65": 100},
    }
    ids = generate(server, text="abc", sampling_params=params)["output_ids"]
    assert 3 <= len(ids) <= 6
    biased = {"max_new_tokens": 4, "temperature": 0, "logit_bias": {"65": 100}}
    assert generate(server, text="abc", sampling_params=biased)["output_ids"] == [65] * 4


def test_structured_output_follows_its_schema(client):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    answer = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=120, response_format=form
    )
    value = json.loads(answer.choices[0].message.content)
    assert value["kind"] in ("a", "b") and isinstance(value["ok"], bool)
    bad = {"regex": "(unclosed"}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=MESSAGES, extra_body=bad)


def test_structured_output_with_a_pydantic_model(client):
    class Verdict(pydantic.BaseModel):
        sure: bool
        side: Literal["left", "right"]

    answer = client.chat.completions.parse(
        model="m", messages=MESSAGES, max_tokens=120, response_format=Verdict
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def test_demanded_tool_call_is_made(client):
    schema = {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}}
    schema.update(required=["day"], additionalProperties=False)
    tool = {"type": "function", "function": {"name": "plan", "parameters": schema}}
    answer = client.chat.completions.create(
        model="m", messages=MESSAGES, tools=[tool], tool_choice="required", max_tokens=150
    )
    call = answer.choices[0].message.tool_calls[0].function
    assert call.name == "plan" and json.loads(call.arguments)["day"] in ("Mon", "Tue")


def test_metrics_and_health(server):
    text = httpx.get(f"{server.url}/metrics").text
    for name in ("num_running_reqs", "token_usage", "time_to_first_token_seconds_count"):
        assert f"sglang:{name}" in text
    assert httpx.get(f"{server.url}/health_generate").status_code == 200


def test_every_socket_is_on_loopback(server):
    """CVE-2026-3059 and others: what stages use to meet must not be open to other machines."""
    launcher = psutil.Process(server.process.pid)
    addresses = [
        connection.laddr.ip
        for process in (launcher, *launcher.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(addresses) >= 2 and set(addresses) <= {"127.0.0.1", "::1"}


def test_every_metric_of_the_dashboard_is_served(server):
    text = httpx.get(f"{server.url}/metrics").text
    names = {line.split("{")[0] for line in text.splitlines() if line.startswith("sglang:")}
    dashboard = json.loads((PYTHON_ROOT.parent / "docs" / "grafana_dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    wanted = {name for query in queries for name in re.findall(r"sglang:\w+", query)}
    assert len(wanted) > 15 and wanted <= names, wanted - names


def test_killed_stage_ends_the_server_and_answers_its_requests(model):
    with server_process(MODULE, model, *FLAGS, "--max-running-requests", "4") as running:
        running.wait_ready(40)
        pids = running.child_pids()
        outcome: list = []

        def call() -> None:
            body = {"text": "x", "sampling_params": LONG}
            outcome.append(httpx.post(f"{running.url}/generate", json=body, timeout=30))

        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.3)
        os.kill(pids[1], signal.SIGKILL)
        start = time.monotonic()
        thread.join(10)
        assert time.monotonic() - start < 5
        assert outcome[0].status_code == 500 and "stage 1" in outcome[0].text
        assert running.wait_end() == 1
        assert_gone(pids)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pp-size", "9"], ["--pp-size", "4 layers"]),
        (["--context-length", "999999"], ["999999"]),
        (["--model-path", "/no/such/model"], ["/no/such/model"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
)
def test_bad_start_is_one_line_and_a_non_zero_exit(model, flags, words):
    command = [sys.executable, "-m", MODULE, "--model-path", str(model), "--port", "39999", *flags]
    environment = {**os.environ, "PYTHONPATH": str(PYTHON_ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    lines = done.stderr.strip().splitlines()
    assert done.returncode != 0
    assert len(lines) == 1 and all(word in lines[0] for word in words), lines
