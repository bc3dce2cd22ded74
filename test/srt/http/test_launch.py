"""The launcher as a process: start, faults, signals, and nothing left behind.

Stages are fake, so a start takes a second; the real ones are in test/srt/http.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import httpx
import pytest

from support.byte_tokenizer import make_backend
from support.server_process import ServerProcess, assert_gone, server_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_backend().save(str(folder / "tokenizer.json"))
    return folder


def server(model_folder, *flags, **environment):
    return server_process("support.fake_server", model_folder, *flags, **environment)


def long_call(running: ServerProcess):
    """A request that takes for ever, in a thread; returns (thread, outcome)."""
    outcome: list = []

    def call() -> None:
        body = {"text": "abc", "sampling_params": {"max_new_tokens": 500}}
        try:
            outcome.append(httpx.post(f"{running.url}/generate", json=body, timeout=30))
        except httpx.HTTPError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.5)
    return thread, outcome


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_server_with_status_0_and_nothing_left(model_folder, number):
    with server(model_folder, "--pp-size", "2") as running:
        running.wait_ready()
        pids = running.child_pids()
        assert len(pids) == 2
        assert httpx.get(f"{running.url}/health").status_code == 200
        running.process.send_signal(number)
        assert running.wait_end() == 0
        assert_gone(pids)
        assert os.listdir(running.folder) == []


def test_signal_lets_a_short_request_finish(model_folder):
    with server(model_folder, FAKE_STAGE_DELAY="0.003") as running:
        running.wait_ready()
        thread, outcome = long_call(running)
        running.process.terminate()
        thread.join()
        assert outcome[0].json()["meta_info"]["finish_reason"]["type"] == "length"
        assert running.wait_end() == 0


def test_second_signal_does_not_wait_for_requests(model_folder):
    with server(model_folder, "--skip-server-warmup", FAKE_STAGE_DELAY="0.5") as running:
        running.wait_ready()
        thread, outcome = long_call(running)
        running.process.terminate()
        time.sleep(0.3)
        running.process.terminate()
        start = time.monotonic()
        thread.join()
        assert time.monotonic() - start < 2
        assert outcome[0].status_code == 503
        running.wait_end()


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_stage_is_named_and_ends_everything(model_folder, victim):
    with server(model_folder, "--pp-size", "2", FAKE_STAGE_DELAY="0.05") as running:
        running.wait_ready()
        pids = running.child_pids()
        thread, outcome = long_call(running)
        os.kill(pids[victim], signal.SIGKILL)
        start = time.monotonic()
        thread.join()
        assert time.monotonic() - start < 5
        assert outcome[0].status_code == 500
        assert f"stage {victim}" in outcome[0].json()["error"]["message"]
        assert running.wait_end() == 1
        assert any(f"stage {victim}" in line and "SIGKILL" in line for line in running.lines)
        assert_gone(pids)


def test_stage_that_fails_to_load_is_one_line_and_status_1(model_folder):
    with server(model_folder, "--pp-size", "2", FAKE_STAGE_FAULT="fail") as running:
        assert running.wait_end() == 1
        errors = [line for line in running.lines if "launch_server: error" in line]
        assert len(errors) == 1 and "stage 1: weights are missing: layer 7" in errors[0]


def test_stage_that_exits_without_a_word_is_named(model_folder):
    with server(model_folder, FAKE_STAGE_FAULT="exit") as running:
        assert running.wait_end() == 1
        assert "stage 0" in running.lines[-1] and "status 3" in running.lines[-1]


def test_stubborn_stage_is_killed(model_folder):
    with server(model_folder, FAKE_STAGE_FAULT="stubborn") as running:
        running.wait_ready()
        pids = running.child_pids()
        running.process.terminate()
        assert running.wait_end(20) == 0
        assert_gone(pids)


def test_stages_end_when_the_launcher_is_killed(model_folder):
    with server(model_folder, "--pp-size", "2") as running:
        running.wait_ready()
        pids = running.child_pids()
        running.process.kill()
        assert_gone(pids)


def test_port_in_use_is_one_line_before_any_stage_starts(model_folder):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        with server(model_folder, "--port", port) as running:
            assert running.wait_end() == 1
            assert len(running.lines) == 1 and port in running.lines[0]


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_hangs_up_frees_its_request(model_folder, stream):
    with server(model_folder, "--skip-server-warmup", FAKE_STAGE_DELAY="0.02") as running:
        running.wait_ready()
        body = {"text": "abc", "stream": stream, "sampling_params": {"max_new_tokens": 500}}
        with pytest.raises(httpx.TimeoutException), httpx.Client(timeout=0.5) as client:
            if not stream:
                client.post(f"{running.url}/generate", json=body)
            with client.stream("POST", f"{running.url}/generate", json=body) as response:
                lines = response.iter_lines()  # kept: the end of the iterator closes the stream
                next(lines)
                assert _num_live(running) == 1
                raise httpx.ReadTimeout("seen enough")
        deadline = time.monotonic() + 3
        while _num_live(running):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _num_live(running: ServerProcess) -> int:
    return httpx.get(f"{running.url}/server_info").json()["num_live"]
