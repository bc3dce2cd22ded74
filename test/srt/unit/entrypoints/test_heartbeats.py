"""The watchdog names the stage and what it last said."""

from __future__ import annotations

from sglang.srt.entrypoints.heartbeats import Heartbeats


def test_silent_stage_is_named_with_its_last_words():
    beats = Heartbeats([0, 1], 10, now=0)
    beats.beat(1, 4, "awaiting micro-batch 7 from stage 0")
    beats.beat(0, 12)
    assert beats.stuck(13) == []
    assert beats.stuck(15) == [
        "stage 1 gave no sign of life for 10 s (last: awaiting micro-batch 7 from stage 0)"
    ]


def test_stage_that_is_busy_for_too_long_is_stuck():
    beats = Heartbeats([0, 1], 10, now=0)
    beats.beat(1, 1, "computing micro-batch 3", 11)
    assert beats.stuck(2) == ["stage 1 is stuck: computing micro-batch 3 for 11 s"]


def test_stage_that_never_spoke_is_silent_after_the_time():
    assert Heartbeats([0], 10, now=0).stuck(10) == []
    assert len(Heartbeats([0], 10, now=0).stuck(11)) == 1
