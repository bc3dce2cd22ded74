"""Each fault in `support/seeded_faults.py` must be noticed by the scheduler machine."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.seeded_faults import SCHEDULER_FAULTS, Fault
from test_scheduler_machine import SchedulerMachine

QUICK = settings(
    max_examples=1000,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),  # finding it is enough
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("fault", SCHEDULER_FAULTS, ids=lambda fault: fault.__name__)
def test_scheduler_machine_with_seeded_fault_fails(fault: Fault) -> None:
    with fault(), pytest.raises(BaseException):  # noqa: B017, PT011 - any failure notices it
        run_state_machine_as_test(SchedulerMachine, settings=QUICK)
