"""Only three places know that there are GPUs."""

from __future__ import annotations

from support.source_tree import sources

ALLOWED = ("srt/platform.py", "srt/model_executor/cuda_graph_runner.py", "srt/kernels/triton/")


def test_torch_cuda_appears_behind_the_seam_only() -> None:
    offenders = [
        source.name
        for source in sources()
        if "torch.cuda" in source.text and not any(a in source.path.as_posix() for a in ALLOWED)
    ]
    assert not offenders


def test_every_op_has_a_reference() -> None:
    """What other devices implement is checked against the plain torch version."""
    from sglang.srt.kernels import registry

    assert {name for _, name in registry._TABLE} <= set(registry.REFERENCE)
    assert set(registry.cpu_kernels()) <= set(registry.REFERENCE)
