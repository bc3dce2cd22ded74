"""docs/adding_a_model.md, followed word for word."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang.srt.models
from sglang.srt.models import layer_config
from support import families
from support.families import family_model
from support.in_process import InProcessServer
from support.oracle import check_greedy

PAGE = Path(__file__).parents[4] / "docs" / "adding_a_model.md"
MAX_LINES = 120  # of a new dense model, all of its code together


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def granite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[families.Family]:
    """The page's modules, found where the page says that they belong."""
    config, model, shapes = blocks()
    names = ("sglang.srt.models.configs.granite", "sglang.srt.models.granite",
             "support.families.granite")  # fmt: skip
    packages = (sglang.srt.models.configs, sglang.srt.models, families)
    for name, package, code in zip(names, packages, (config, model, shapes), strict=True):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "granite.py").write_text(code)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        assert name not in sys.modules, "the page's example is served already: take another"
    try:
        registered = importlib.import_module(names[0]).ARCHITECTURES
        monkeypatch.setattr(
            layer_config, "ARCHITECTURES", {**layer_config.ARCHITECTURES, **registered}
        )
        for module in ("sglang.srt.models.config", "sglang.srt.models.registry"):
            known = importlib.import_module(module)
            monkeypatch.setattr(known, "ARCHITECTURES", layer_config.ARCHITECTURES)
        families.families.cache_clear()
        yield families.families()["granite"]
    finally:
        families.families.cache_clear()
        for name in names:
            sys.modules.pop(name, None)


def test_a_dense_model_is_short() -> None:
    config, model, _ = blocks()
    assert len(model.splitlines()) + len(config.splitlines()) <= MAX_LINES


def test_the_page_makes_a_model_that_equals_transformers(granite: families.Family) -> None:
    prompts = [[5], list(range(64)), [9, 8, 7] * 40]
    for shape in granite.shapes:
        folder = family_model("granite", shape)
        for pp_size, chunk in ((1, -1), (2, 37)):
            server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
            for prompt, output in zip(prompts, server.generate(prompts, 6), strict=True):
                check_greedy(folder, prompt, output)


def test_the_page_names_layers_that_exist() -> None:
    layers = Path(sglang.srt.models.__file__).parents[1]
    named = re.findall(r"\| `(layers/[\w/]+\.py)`((?: `\w+`,?)*)", PAGE.read_text())
    assert len(named) > 8
    for path, classes in named:
        text = (layers / path).read_text()
        for name in re.findall(r"`(\w+)`", classes):
            assert f"class {name}" in text, f"{path} has no {name}"
