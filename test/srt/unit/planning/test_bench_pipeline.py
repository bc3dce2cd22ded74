"""What the benchmark makes of traces and answers; no server is started."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sglang import bench_pipeline as bench
from sglang.bench_support import BenchError, BenchServer, TracedChunk, bubble_fractions, read_trace
from sglang.srt.managers.chunk_sizer import LatencyModel
from sglang.srt.managers.pp_trace import PipelineTrace
from sglang.srt.managers.schedule_batch import BatchRow, Req, ScheduleBatch
from sglang.srt.managers.step_plan import StageSpan, StepPlan, StepResult
from sglang.srt.sampling.sampling_params import SamplingParams

MODELS = (LatencyModel(1e-8, 1e-5, 1e-3, 0.0), LatencyModel(0.0, 2e-5, 1e-3, 0.0))


def chunk(start: int, end: int, at: float) -> TracedChunk:
    times = [model.seconds(start, end - start) for model in MODELS]
    return TracedChunk(start, end, (at, at + times[0]), (at + times[0], at + sum(times)))


def measured() -> list[bench.Measured]:
    stages = [{"a": m.a, "b": m.b, "c": m.c, "g": m.g, "num_samples": 50} for m in MODELS]
    info = {
        "dynamic_chunking": {
            "enabled": True, "stages": stages, "base_chunk_size": 512, "mape": 0.02,
            "num_profile_requests": 12, "profile_seconds": 1.5,
        }
    }  # fmt: skip
    static = bench.Measured(bench.Setting(512), {"dynamic_chunking": {"enabled": False}})
    dynamic = bench.Measured(bench.Setting(512, 0.75), info)
    for turn in range(3):
        ends = [(0, 512), (512, 1024)]
        chunks = [chunk(a, b, i * 0.02) for i, (a, b) in enumerate(ends)]
        static.samples.append(bench.Sample(1024, 0.10 + turn * 0.01, chunks))
        ends = [(0, 512), (512, 896), (896, 1024)]
        chunks = [chunk(a, b, i * 0.02) for i, (a, b) in enumerate(ends)]
        dynamic.samples.append(bench.Sample(1024, 0.09 + turn * 0.01, chunks))
    return [static, dynamic]


def test_the_trace_that_the_server_writes_is_read(tmp_path: Path) -> None:
    trace = PipelineTrace(str(tmp_path / "trace.json"), 2)
    for seq, (start, end, name) in enumerate([(0, 8, "a#f00"), (8, 12, "a#f00"), (0, 4, "b")]):
        req = Req(name, [1] * 12, SamplingParams(max_new_tokens=1), arrival=0, owner=1)
        plan = StepPlan(seq, 0, 0, [1], [start], [end - start], [], [], b"", b"")
        spans = [StageSpan(seq, seq + 0.1, seq + 0.4), StageSpan(seq, seq + 0.5, seq + 0.6)]
        batch = ScheduleBatch(plan, [BatchRow(req, start, end, False, 0)])
        trace.add(batch, StepResult(seq, [], spans))
    trace.flush()
    found = read_trace(tmp_path / "trace.json")
    assert [(c.start, c.end) for c in found["a"]] == [(0, 8), (8, 12)]
    assert found["b"][0].stage_seconds == pytest.approx([0.3, 0.1])
    assert found["b"][0].seconds == pytest.approx(0.3)
    # Two micro-batches of 0.3 s and 0.1 s between 0.1 s and 1.6 s.
    assert bubble_fractions(found["a"]) == pytest.approx([1 - 0.6 / 1.5, 1 - 0.2 / 1.5])


def test_a_trace_that_is_being_written_is_empty(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": [')
    assert read_trace(tmp_path / "trace.json") == {}


def test_report_compares_with_the_best_static_size() -> None:
    text = bench.report_text(measured(), [1024])
    assert "dynamic 0.75 512, 1.02k: 512 384 128" in text and "2x512" in text
    assert "-9.1%" in text  # 100 ms against 110 ms
    assert "profiled with 12 requests (50 samples a stage) in 1.5 s, fit error 2.0%" in text
    assert "0.0%" in text.splitlines()[-1] or "prediction error" in text


def test_a_server_that_fell_back_to_static_chunks_is_named() -> None:
    static, dynamic = measured()
    dynamic.info = {"dynamic_chunking": {"enabled": False, "reason": "no slot"}}
    text = bench.report_text([static, dynamic], [1024])
    assert "RAN WITH STATIC CHUNKS: no slot" in text and "no model" in text


def test_json_has_predicted_beside_measured_times() -> None:
    found = json.loads(json.dumps(bench.report_json(measured(), "command")))
    (sample, *_) = found["settings"][1]["samples"]
    assert [c["end"] for c in sample["chunks"]] == [512, 896, 1024]
    for c in sample["chunks"]:
        assert c["predicted_s"] == pytest.approx(max(c["stage_seconds"]))


def test_charts_are_valid() -> None:
    ElementTree.fromstring(bench.report_svg(measured(), [1024]))


def test_settings_and_bad_flags() -> None:
    parse = bench.build_parser().parse_args
    names = [s.name for s in bench.settings_of(parse(["--chunk-sizes", "256,512"]))]
    assert names == ["static 256", "static 512", "dynamic 0.75 256"]
    for flags in (["--chunk-sizes", "0"], ["--smooth-factors", "1.5"], ["--smooth-factors", "x"]):
        with pytest.raises(BenchError, match=flags[0]):
            bench.settings_of(parse(flags))


def test_a_server_that_does_not_start_is_an_error_with_its_reason(tmp_path: Path) -> None:
    server = BenchServer(tmp_path, "/no/such/model", [], {})
    try:
        with pytest.raises(BenchError, match=r"did not come up.*no such"):
            server.wait_ready()
    finally:
        server.close()
