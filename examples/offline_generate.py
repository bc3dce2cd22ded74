"""Generate without a server: `python examples/offline_generate.py`."""

import sglang

with sglang.Engine(model_path="tiny-hybrid", pp_size=2) as engine:
    prompts = ["Once upon a time", "What is the opposite of hot?"]
    for prompt, answer in zip(
        prompts, engine.generate(prompts, {"max_new_tokens": 40, "temperature": 0}), strict=True
    ):
        print(f"{prompt!r} -> {answer['text']!r}")
