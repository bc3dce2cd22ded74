"""`sglang chat` against a server of fake stages, which echo the prompt."""

from __future__ import annotations

import io

import pytest

from sglang.cli import main
from support.byte_tokenizer import make_backend
from support.server_process import server_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_backend().save(str(folder / "tokenizer.json"))
    flags = ("--api-key", "secret", "--chat-template", "{{ messages[-1].content }}")
    with server_process("support.fake_server", folder, *flags) as running:
        running.wait_ready()
        yield running.url


def _chat(monkeypatch, lines: str, *flags: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(["chat", *flags])


def test_chat_streams_answers_until_exit(url, monkeypatch, capsys):
    flags = ("--url", url, "--api-key", "secret", "--max-tokens", "9")
    assert _chat(monkeypatch, "hello é\n/clear\n/exit\n", *flags) == 0
    assert "hello é" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["wrong", "secret"])
def test_failure_is_one_line(url, monkeypatch, capsys, key):
    address = url if key == "wrong" else "http://127.0.0.1:9"
    assert _chat(monkeypatch, "hello\n", "--url", address, "--api-key", key) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), ([], 2), (["nonsense"], 2)])
def test_usage(words, status):
    assert main(words) == status


def test_serve_takes_the_flags_of_the_server(capsys):
    assert main(["serve", "--no-such-flag"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err
