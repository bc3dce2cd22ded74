"""Profiles, prompt lengths, the sweep and what is printed of it."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.plan_pipeline import cli
from sglang.plan_pipeline.lengths import LengthError, parse_lengths
from sglang.plan_pipeline.profile import Link, PipelineProfile, ProfileError, parse_profile
from sglang.plan_pipeline.svg import Chart, Series, number, page
from sglang.plan_pipeline.sweep import PlanRequest, sweep
from sglang.srt.managers.chunk_sizer import LatencyModel

TOTAL = {"a": 1e-8, "b": 4e-5, "c": 4e-3, "g": 2e-7}
PROFILE = {"total": TOTAL, "layers": "LLLA" * 4, "link": {"latency_s": 1e-4}}


@pytest.mark.parametrize("pp_size", range(1, 17))
def test_stages_add_up_to_the_whole_model(pp_size: int) -> None:
    profile = parse_profile(PROFILE)
    stages = profile.divided(pp_size)
    assert len(stages) == pp_size
    for name, value in TOTAL.items():
        assert sum(getattr(stage, name) for stage in stages) == pytest.approx(value)


def test_attention_costs_go_where_the_attention_layers_are() -> None:
    first, second = parse_profile({**PROFILE, "layers": "LLLLLLAA"}).divided(2)
    assert first.a == first.g == 0 and second.a == TOTAL["a"]
    assert first.b == second.b == TOTAL["b"] / 2


def test_a_server_info_answer_is_a_profile() -> None:
    stages = [{**TOTAL, "mape": 0.01, "num_samples": 50}] * 2
    info = {"dynamic_chunking": {"enabled": True, "base_chunk_size": 256, "stages": stages}}
    profile = parse_profile(info)
    assert profile.base_chunk_size == 256
    assert profile.divided(2) == profile.stages
    with pytest.raises(ProfileError, match="'layers' is needed to plan --pp-size 4"):
        profile.divided(4)


@pytest.mark.parametrize(
    "raw, named",
    [
        ([], "JSON object"),
        ({}, "'stages' must be a list"),
        ({"dynamic_chunking": {"enabled": False, "reason": "no slot"}}, "no slot"),
        ({"total": {"a": -1}}, "stages[0].a"),
        ({"total": {"a": "1"}}, "stages[0].a"),
        ({"total": {}}, "no coefficient above 0"),
        ({"stages": [3]}, "stages[0]"),
        ({**PROFILE, "layers": "LXA"}, "'X'"),
        ({**PROFILE, "layers": 3}, "'layers'"),
        ({**PROFILE, "link": 3}, "'link'"),
        ({**PROFILE, "link": {"bytes_per_s": 0}}, "link.bytes_per_s"),
        ({**PROFILE, "step_overhead_s": -1}, "step_overhead_s"),
    ],
)
def test_a_bad_profile_is_refused_by_field(raw: object, named: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(raw)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_quantiles_are_sampled_evenly_and_the_same_every_time() -> None:
    lengths = parse_lengths("0:100,0.5:1000,1:10000")
    sample = lengths.sample(100)
    assert sample == lengths.sample(100)
    assert sum(n <= 1000 for n in sample) == 50
    assert min(sample) >= 100 and max(sample) <= 10000
    assert lengths.shown() == (1000, lengths.at(0.9), lengths.at(0.99))
    assert parse_lengths("5,7").sample(5) == [5, 7, 5, 7, 5]


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=5), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise(values: list[int], low: float, high: float) -> None:
    values.sort()
    shares = [i / (len(values) - 1) for i in range(len(values))]
    text = ",".join(f"{s}:{v}" for s, v in zip(shares, values, strict=True))
    lengths = parse_lengths(text)
    assert values[0] <= lengths.at(min(low, high)) <= lengths.at(max(low, high)) <= values[-1]


@pytest.mark.parametrize("text", ["", "a", "0", "-3", "0:5,0:6", "0.5:9,1:5", "0:1,2:9", "0:x"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(LengthError):
        parse_lengths(text)


def small_plan():
    request = PlanRequest(parse_lengths("512,4096"), (1, 2, 4, 64), (128, 512), (1.0,), 3)
    return sweep(parse_profile(PROFILE), request)


def test_the_sweep_tries_everything_and_takes_the_best() -> None:
    plan = small_plan()
    assert plan.pp_sizes() == [1, 2, 4]
    assert "at least 64 layers" in plan.skipped[64]
    assert len(plan.rows) == 2 + 4 + 4  # with one stage there is nothing to level
    best = plan.best("ttft", 2)
    assert best.mean_ttft_s <= 1.01 * min(r.mean_ttft_s for r in plan.rows if r.pp_size == 2)
    assert plan.efficiency(plan.best("ttft", 1), "ttft") == pytest.approx(1)
    assert plan.best("throughput").tokens_per_s >= 0.98 * max(r.tokens_per_s for r in plan.rows)


def test_of_equals_the_simplest_is_recommended() -> None:
    """Without attention dynamic chunks gain nothing: static ones, and the fewest stages."""
    linear = PipelineProfile((LatencyModel(0.0, 1e-4, 0.0, 0.0),) * 2, ())
    request = PlanRequest(parse_lengths("8192"), (2,), (256, 512), (0.5, 1.0), 0)
    best = sweep(linear, request).best("throughput")
    assert best.smooth is None and best.flags().startswith("--pp-size 2 --chunked-prefill-size")


def test_no_possible_number_of_stages_is_an_error() -> None:
    request = PlanRequest(parse_lengths("512"), (17, 64), (128,), (), 0)
    with pytest.raises(ProfileError, match="at least 17 layers"):
        sweep(parse_profile(PROFILE), request)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    flags = f"--profile {profile} --pp-sizes 1,2 --chunk-sizes 256 --prompt-lens 2048"
    outputs = f"--num-requests 2 --json {tmp_path}/p.json --svg {tmp_path}/p.svg"
    assert cli.main([*flags.split(), *outputs.split()]) == 0
    printed = capsys.readouterr().out
    assert "--pp-size 2 --chunked-prefill-size 256" in printed and "TTFT 2.05k" in printed
    found = json.loads((tmp_path / "p.json").read_text())
    assert {row["pp_size"] for row in found["rows"]} == {1, 2}
    assert found["recommended"]["ttft"]["overall"]["pp_size"] == 2
    ElementTree.parse(tmp_path / "p.svg")


def test_layers_come_from_a_model_folder() -> None:
    profile = cli.with_model(parse_profile({"total": TOTAL}), "tiny-hybrid", 4)
    assert profile.has_states() and "attention" in profile.layers
    assert profile.activation_bytes_per_token > 0


@pytest.mark.parametrize(
    "flags, named",
    [
        ("--pp-sizes 0,2", "pp-sizes"),
        ("--pp-sizes 65", "pp-sizes"),
        ("--smooth-factors 2", "smooth-factors"),
        ("--prompt-lens x", "prompt-lens"),
        ("--chunk-sizes x", "chunk-sizes"),
    ],
)
def test_flags_out_of_bounds_are_refused(
    flags: str, named: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--profile", "p.json", *flags.split()])
    assert caught.value.code == 2 and named in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["--cores 0", "--link-gbytes-per-s 0", "--model-path /none"])
def test_values_that_cannot_be_used_end_with_one_line(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    assert cli.main(["--profile", str(profile), *flags.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["--profile", str(tmp_path / "none.json")]) == 2


@given(
    st.lists(
        st.tuples(st.integers(1, 2**20), st.floats(1e-6, 1e6)), min_size=1, max_size=8, unique=True
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_chart_is_valid_svg_inside_its_frame(
    points: list[tuple[int, float]], log: bool, steps: bool
) -> None:
    chart = Chart("a < b & c", "x", "y", [Series("s", sorted(points))], log, log, steps)
    root = ElementTree.fromstring(page([chart, chart, chart]))
    for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
        pairs = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
        assert all(0 <= x <= 560 and 0 <= y <= 340 for x, y in pairs)


def test_labels_are_short() -> None:
    assert [number(v) for v in (0, 0.25, 12, 1000, 65536, 2e6)] == [
        "0", "0.25", "12", "1k", "65.5k", "2M",
    ]  # fmt: skip


def test_a_link_without_bounds_costs_nothing() -> None:
    assert Link().seconds(1e9) == 0


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom sglang.plan_pipeline.cli import build_parser\nbuild_parser()\n"
        "sys.exit('torch' in sys.modules)"
    )
    path = [p for p in sys.path if p.endswith("python")]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path}\n{code}"], check=True)
