"""`launch_server` with fake stages: everything of the real launcher but the model."""

from __future__ import annotations

import sys

from sglang.launch_server import main
from sglang.srt.entrypoints import launch, runtime, stage_processes
from support.byte_tokenizer import make_tokenizer
from support.fake_scheduler import ModelStub

if __name__ == "__main__":
    runtime.JOIN_SECONDS = runtime.KILL_SECONDS = 1.0
    stage_processes.STAGE_MODULE = "support.fake_stage_process"
    launch.load_model_facts = lambda _args: ModelStub(make_tokenizer().vocab_size)
    sys.exit(main())
