"""Applies to all tests."""

from __future__ import annotations

import os

# Tiny models gain nothing from a second thread, and tests that run while another process computes
# lose a great deal by it. Servers that tests start inherit this. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
