"""Who may import whom."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.source_tree import Source, sources

SRT = "sglang.srt."

# Decisions: functions of numbers and small dataclasses, importable without a device or a socket.
PURE = (
    "managers.schedule_policy",
    "managers.step_plan",
    "managers.chunk_sizer",
    "mem_cache.sizing",
    "mem_cache.layer_specs",
    "distributed.layer_split",
    "models.architecture",
    "models.rope_config",
    "models.layer_config",
    "models.config",
)

# (importer, imported): prefixes that must not meet at run time.
FORBIDDEN = (
    ("mem_cache", "managers"),
    ("mem_cache", "models"),
    ("layers", "managers"),
    ("layers", "model_executor"),
    ("models", "managers"),
    ("models", "model_executor"),
    ("kernels", "layers"),
    ("kernels", "managers"),
    ("kernels", "mem_cache"),
    ("kernels", "model_executor"),
    ("distributed", "managers"),
    ("sampling", "managers"),
    ("managers", "entrypoints"),
    ("mem_cache", "entrypoints"),
    ("model_executor", "entrypoints"),
    ("model_executor", "managers.scheduler"),
    ("entrypoints", "model_executor"),
    ("entrypoints", "managers.scheduler"),
    ("entrypoints", "managers.stage"),
)


@pytest.mark.parametrize("importer, imported", FORBIDDEN)
def test_lower_layer_does_not_import_upper(importer: str, imported: str) -> None:
    offenders = [
        (source.name, name)
        for source in sources()
        if source.name.startswith(SRT + importer)
        for name in source.imports()
        if name.startswith(SRT + imported)
    ]
    assert not offenders


@pytest.mark.parametrize("name", PURE)
def test_decisions_are_pure(name: str) -> None:
    (source,) = [s for s in sources() if s.name == SRT + name]
    roots = {imported.split(".")[0] for imported in source.imports()}
    assert not roots & {"torch", "zmq", "time", "random"}
    assert "environ" not in source.text


def test_what_a_family_remembers_is_known_without_torch() -> None:
    configs = [s for s in sources() if s.name.startswith(SRT + "models.configs.")]
    assert configs
    for source in configs:
        assert not any(name.startswith("torch") for name in source.imports()), source.name


def test_no_import_cycle() -> None:
    """Modules, as they are imported, form an order."""
    modules = {source.name: source for source in sources()}
    graph = {
        name: sorted(i for i in source.imports(lazy=False) if i in modules and i != name)
        for name, source in modules.items()
    }
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for other in graph[name]:
            visit(other)
        path.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


@pytest.mark.parametrize("source", sources(), ids=lambda s: s.name)
def test_no_pickle_and_no_model_code_from_elsewhere(source: Source) -> None:
    roots = {name.split(".")[0] for name in source.imports()}
    assert not roots & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
    assert "trust_remote_code=True" not in source.text


@pytest.mark.parametrize(
    "module",
    ["sglang", "sglang.srt.server_args", "sglang.srt.managers.tokenizer_manager",
     "sglang.srt.managers.detokenizer", "sglang.srt.entrypoints.http_server",
     "sglang.srt.models.config"],
)  # fmt: skip
def test_front_end_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    path = [p for p in sys.path if p.endswith("python")]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path}; {code}"], check=True)
