"""Profiles: `ci` by default; tools/stateful_20k.sh runs 20,000 examples by `deep`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
    # A merge must not depend on luck; searching for new failures is for runs outside of CI.
    "derandomize": bool(os.environ.get("CI")),
}
settings.register_profile("ci", max_examples=200, stateful_step_count=20, **_COMMON)
settings.register_profile(
    "deep",
    max_examples=int(os.environ.get("STATEFUL_EXAMPLES", "1000")),
    stateful_step_count=50,
    **{**_COMMON, "database": None, "derandomize": False},
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
