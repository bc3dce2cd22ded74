"""`sglang.Engine` over fake stage processes: from a script, a loop, a notebook-like thread."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys

import pytest

from sglang.srt.entrypoints import engine as engine_module
from sglang.srt.entrypoints import stage_processes
from sglang.srt.server_args import ServerArgsError
from support.byte_tokenizer import make_backend, make_tokenizer
from support.fake_scheduler import ModelStub

TEST_ROOT = pathlib.Path(__file__).parents[2]
PYTHON_ROOT = TEST_ROOT.parents[1] / "python"
SHORT = {"max_new_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_backend().save(str(folder / "tokenizer.json"))
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join((str(PYTHON_ROOT), str(TEST_ROOT)))
        patch.setenv("PYTHONPATH", path)
        patch.setattr(stage_processes, "STAGE_MODULE", "support.fake_stage_process")
        stub = ModelStub(make_tokenizer().vocab_size)
        patch.setattr(engine_module, "load_model_facts", lambda _args: stub)
        from sglang import Engine

        with Engine(model_path=str(folder), pp_size=2) as running:
            yield running


def test_generate_answers_like_the_server(engine):
    answer = engine.generate("abc", SHORT)
    assert answer["text"] == "abc"
    assert answer["meta_info"]["completion_tokens"] == 3
    assert engine.generate(input_ids=[65, 66], sampling_params=SHORT)["output_ids"] == [65, 66, 65]


def test_batch_answers_a_list(engine):
    answers = engine.generate(["ab", "cd"], {**SHORT, "max_new_tokens": 2})
    assert [answer["text"] for answer in answers] == ["ab", "cd"]


def test_stream_yields_the_text_so_far(engine):
    texts = [chunk["text"] for chunk in engine.generate("abc", SHORT, stream=True)]
    assert texts[-1] == "abc"


def test_stream_left_early_frees_its_request(engine):
    for _ in engine.generate("abc", {"max_new_tokens": 400}, stream=True):
        break
    assert engine.flush_cache()


def test_bad_input_is_a_value_error(engine):
    with pytest.raises(ValueError, match="temperature"):
        engine.generate("a", {"temperature": -1})
    with pytest.raises(ValueError, match="nonsense"):
        engine.generate("a", nonsense=1)


def test_async_generate_in_the_callers_loop(engine):
    async def main():
        calls = [engine.async_generate(text, SHORT) for text in ("abc", "def")]
        answers = await asyncio.gather(*calls)
        stream = await engine.async_generate("xyz", SHORT, stream=True)
        return [answer["text"] for answer in answers] + [[c["text"] async for c in stream][-1]]

    assert asyncio.run(main()) == ["abc", "def", "xyz"]


def test_server_info_shows_the_stages(engine):
    assert [stage["pp_rank"] for stage in engine.get_server_info()["stages"]] == [0, 1]


def test_bad_arguments_are_refused(engine):
    with pytest.raises(ServerArgsError, match="SGLang flag"):
        type(engine)(model_path="x", quantization="fp8")
    with pytest.raises(ServerArgsError, match="no such folder"):
        type(engine)(model_path="/no/such/folder")


def test_importing_sglang_and_its_front_end_imports_no_torch():
    code = (
        "import sys, sglang, sglang.srt.entrypoints.engine, sglang.srt.entrypoints.http_server\n"
        "import sglang.srt.entrypoints.launch, tokenizers\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(PYTHON_ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
