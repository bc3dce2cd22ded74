"""Train the default model on one CPU core, with checkpoints and resumption.

The model is the Qwen3.5 text architecture of transformers: gated delta net layers
(arXiv:2412.06464) with a gated full attention layer after every three of them.  Matrices are
trained with Muon (momentum orthogonalised by a Newton-Schulz iteration; arXiv:2502.16982), all
others with AdamW (arXiv:1711.05101).  The learning rate is set by elapsed time (warm-up, stable,
decay; WSD, arXiv:2404.06395), so that a run ends where its time budget ends.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fast_ops import patch_model
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig


def make_config(vocab: int) -> Qwen3_5TextConfig:
    """Configuration of the default model (about four million parameters)."""
    config = Qwen3_5TextConfig(
        vocab_size=vocab,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    )
    config._attn_implementation = "sdpa"
    return config


def init_gates(model: nn.Module) -> None:
    """Spread the decay of the linear layers from short to long memory (Mamba-2 style)."""
    module: Any
    for module in model.modules():
        if type(module).__name__ == "Qwen3_5GatedDeltaNet":
            heads = module.num_v_heads
            step = torch.exp(torch.linspace(math.log(0.002), math.log(0.1), heads))
            with torch.no_grad():
                module.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
                module.A_log.copy_(torch.log(torch.linspace(1.0, 4.0, heads)))


# Coefficients of the five orthogonalisation steps, one set a step, as used by public Muon code.
NEWTON_SCHULZ = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


@torch.no_grad()
def init_recall(model: Any, layers: tuple[int, ...] = (1, 5)) -> None:
    """Let the first key head of some layers look up what followed an earlier equal token.

    Queries and keys get the same projection, and the key convolution is delayed by one token:
    the start of an induction head, which a short training hardly finds by itself (compare
    mimetic initialisation, arXiv:2410.11135).  The head forgets slowly.
    """
    for index in layers:
        net = model.model.layers[index].linear_attn
        dim, keys = net.head_k_dim, net.key_dim
        group = net.num_v_heads // net.num_k_heads
        weight, conv = net.in_proj_qkv.weight, net.conv1d.weight
        shared = nn.init.orthogonal_(torch.empty(dim, weight.shape[1]))
        for start, tap in ((0, -1), (keys, -2)):
            weight[start : start + dim] = shared * 2.0
            conv[start : start + dim] = 0.0
            conv[start : start + dim, 0, tap] = 1.0
        net.A_log[:group] = 0.0
        net.dt_bias[:group] = torch.log(torch.expm1(torch.linspace(0.002, 0.004, group)))
        net.in_proj_a.weight[:group] = 0.0


class Muon:
    """Momentum with orthogonalised updates; equal shapes are processed as one batch."""

    def __init__(self, params: Sequence[Tensor], momentum: float, decay: float) -> None:
        self.params, self.momentum, self.decay = params, momentum, decay
        self.buffers = [torch.zeros_like(p) for p in params]
        self.groups: dict[tuple[int, ...], list[int]] = {}
        for i, p in enumerate(params):
            self.groups.setdefault(tuple(p.shape), []).append(i)

    def _orthogonal(self, g: Tensor) -> Tensor:
        flip = g.shape[1] > g.shape[2]
        x = g if not flip else g.transpose(1, 2)
        x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.01 + 1e-7)
        eye = torch.eye(x.shape[2])
        for a, b, c in NEWTON_SCHULZ:
            gram = x.transpose(1, 2) @ x
            x = x @ (a * eye + b * gram + c * (gram @ gram))
        return x if not flip else x.transpose(1, 2)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update all parameters with learning rate ``rate``."""
        for shape, members in self.groups.items():
            updates = []
            for i in members:
                grad = self.params[i].grad
                assert grad is not None
                self.buffers[i].lerp_(grad, 1 - self.momentum)
                updates.append(torch.lerp(grad, self.buffers[i], self.momentum))
            out = self._orthogonal(torch.stack(updates))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for i, update in zip(members, out, strict=True):
                self.params[i].mul_(1 - rate * self.decay)
                self.params[i].add_(update, alpha=-rate * scale)
                self.params[i].grad = None


class Rows:
    """Endless shuffled rows of a packed array."""

    def __init__(self, path: Path, seed: int) -> None:
        self.data = np.load(path, mmap_mode="r")
        self.order = np.random.default_rng(seed).permutation(len(self.data))
        self.at = 0

    def next(self, count: int) -> Tensor:
        """The next ``count`` rows as a tensor ``(count, 2, length)``."""
        picked = [self.order[(self.at + i) % len(self.order)] for i in range(count)]
        self.at += count
        return torch.from_numpy(self.data[picked].astype(np.int64))


def batch_loss(model: Callable[..., Any], rows: Tensor) -> Tensor:
    """Weighted mean of the next-token losses of a batch of rows."""
    ids, weights = rows[:, 0], rows[:, 1, 1:].float()
    logits = model(ids, use_cache=False).logits[:, :-1].float()
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


@torch.no_grad()
def validation(model: nn.Module, data: Path) -> float:
    """Answer-token loss on some validation rows."""
    rows = torch.from_numpy(np.load(data / "valid_short.npy")[:32].astype(np.int64))
    rows[:, 1] = (rows[:, 1] == 100).long()
    return batch_loss(model, rows).item()


class Run:
    """State of a training run that can be saved and continued."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        vocab = json.loads((args.data / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
        self.args = args
        self.model = Qwen3_5ForCausalLM(make_config(len(vocab)))
        init_gates(self.model)
        init_recall(self.model)
        patch_model(self.model)
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        matrix = [p for n, p in named if p.ndim == 2 and "embed" not in n and p.shape[0] >= 32]
        chosen = {id(p) for p in matrix}
        self.muon = Muon(matrix, momentum=0.95, decay=0.05)
        self.adam = torch.optim.AdamW(
            [p for _, p in named if id(p) not in chosen],
            betas=(0.9, 0.97),
            weight_decay=0.0,
            fused=True,
        )
        self.step, self.elapsed, self.tokens = 0, 0.0, 0
        self.short = Rows(args.data / "train_short.npy", args.seed)
        self.long = Rows(args.data / "train_long.npy", args.seed)
        self.path = args.data / "checkpoint.pt"
        if self.path.is_file() and not args.fresh:
            self.load()

    def load(self) -> None:
        """Continue from the last checkpoint."""
        saved = torch.load(self.path, weights_only=False)
        self.model.load_state_dict(saved["model"])
        self.adam.load_state_dict(saved["adam"])
        self.muon.buffers = saved["muon"]
        self.step, self.elapsed, self.tokens, self.short.at, self.long.at = saved["progress"]

    def save(self) -> None:
        """Write a checkpoint atomically."""
        progress = (self.step, self.elapsed, self.tokens, self.short.at, self.long.at)
        part = self.path.with_suffix(".part")
        torch.save(
            {
                "model": self.model.state_dict(),
                "adam": self.adam.state_dict(),
                "muon": self.muon.buffers,
                "progress": progress,
            },
            part,
        )
        part.replace(self.path)

    def scale(self) -> float:
        """Learning rate factor at the current time: warm-up, stable, then linear decay."""
        done = min(1.0, self.elapsed / (60 * self.args.minutes))
        warm = min(1.0, (self.step + 1) / 40)
        return warm * min(1.0, max(0.0, 1.0 - done) / self.args.decay_share + 0.01)

    def update(self, rows: Tensor, compiled: Callable[..., Any]) -> float:
        """One optimiser step on a batch."""
        model: Callable[..., Any] = compiled if rows.shape[2] < 1000 else self.model
        loss = batch_loss(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adam.param_groups[0]["params"], 1.0)
        factor = self.scale()
        for group in self.adam.param_groups:
            group["lr"] = self.args.adam_rate * factor
        self.adam.step()
        self.adam.zero_grad()
        self.muon.step(self.args.muon_rate * factor)
        self.step += 1
        self.tokens += rows[:, 0].numel()
        return loss.item()

    def train(self) -> None:
        """Train until the time budget is used."""
        compiled: Callable[..., Any] = self.model
        if not self.args.no_compile:
            compiled = torch.compile(self.model, dynamic=False)
        saved, mean, last = self.elapsed, 0.0, time.monotonic()
        while self.elapsed < 60 * self.args.minutes:
            use_long = self.step % self.args.long_every == self.args.long_every - 1
            rows = self.long.next(2) if use_long else self.short.next(self.args.batch)
            loss = self.update(rows, compiled)
            now = time.monotonic()
            self.elapsed, last = self.elapsed + min(now - last, 20.0), now
            if not use_long:
                mean = loss if not mean else 0.95 * mean + 0.05 * loss
            if self.step % 20 == 0:
                print(
                    f"step {self.step} tokens {self.tokens} minutes {self.elapsed / 60:.1f} "
                    f"loss {mean:.3f} rate {self.scale():.3f}",
                    flush=True,
                )
            if self.elapsed - saved > 240:
                saved = self.elapsed
                self.save()
                print(f"saved, validation {validation(self.model, self.args.data):.4f}", flush=True)
                last = time.monotonic()
        self.save()
        print(f"done, validation {validation(self.model, self.args.data):.4f}", flush=True)


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/default_model"))
    parser.add_argument("--minutes", type=float, default=70.0, help="training time budget")
    parser.add_argument("--batch", type=int, default=8, help="rows of 384 tokens in a step")
    parser.add_argument("--long-every", type=int, default=16, help="every n-th step uses long rows")
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument("--decay-share", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="ignore an existing checkpoint")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    Run(args).train()


if __name__ == "__main__":
    main()
