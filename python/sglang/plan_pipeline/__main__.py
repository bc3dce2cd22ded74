"""`python -m sglang.plan_pipeline`."""

import sys

from sglang.plan_pipeline.cli import main

sys.exit(main())
