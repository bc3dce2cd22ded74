"""Attention over the paged KV pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang.srt.kernels.batch_layout import DecodeGroup, DecodeLayout

# Scores held at once where no fused kernel applies: 256 MiB in fp32.
MAX_SCORES = 2**26


def attention_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    prefix_slots: list[torch.Tensor],
    bounds: list[int],
    scale: float,
) -> torch.Tensor:
    """Causal attention of prompt chunks over their prefix and themselves.

    q: [tokens, heads, dim]; k, v: [tokens, kv_heads, dim] of the chunk; kv: the pool's buffers;
    prefix_slots: for each row the slots of what came before it; bounds: row i has tokens
    [bounds[i], bounds[i + 1]). Returns [tokens, heads, v_dim]. Prefix and chunk are attended
    separately and joined by their log-sum-exp (arXiv:2205.14135), so no mask over the prefix is
    ever made.
    """
    out = q.new_empty((*q.shape[:2], v.shape[-1]))
    for i, slots in enumerate(prefix_slots):
        rows = slice(bounds[i], bounds[i + 1])
        own, own_lse = _attend_causal(q[rows], k[rows], v[rows], scale)
        if len(slots):
            keys, values = (buffer.index_select(0, slots) for buffer in kv)
            past, past_lse = _attend_all(q[rows], keys, values, scale)
            own = _join(own, own_lse, past, past_lse)
        out[rows] = own.to(out.dtype)
    return out


def attention_decode(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    layout: DecodeLayout,
    scale: float,
) -> torch.Tensor:
    """One query a row over all its tokens, the new one included.

    q: [rows, heads, dim]; kv: the pool's buffers. Returns [rows, heads, v_dim].
    """
    groups = layout.groups
    if len(groups) == 1:
        return _decode_group(q, kv, groups[0], scale)
    out = q.new_empty((*q.shape[:2], kv[1].shape[-1]))
    for group in groups:
        assert group.rows is not None
        out[group.rows] = _decode_group(q[group.rows], kv, group, scale)
    return out


def _decode_group(
    q: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor], group: DecodeGroup, scale: float
) -> torch.Tensor:
    num_rows, longest = group.slots.shape
    flat = group.slots.flatten()
    # [rows, kv_heads, longest, dim]
    keys, values = (
        x.index_select(0, flat).view(num_rows, longest, *x.shape[1:]).transpose(1, 2) for x in kv
    )
    grouped = q.view(num_rows, keys.shape[1], -1, q.shape[-1])  # the group is the query dimension
    mask = None if group.valid is None else group.valid[:, None, None, :]
    out = F.scaled_dot_product_attention(
        grouped, keys.to(q.dtype), values.to(q.dtype), attn_mask=mask, scale=scale
    )
    return out.reshape(num_rows, q.shape[1], -1)


def _attend_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk over itself: [tokens, heads, v_dim] and log-sum-exp [tokens, heads]."""
    count, kv_heads = k.shape[:2]
    group = q.shape[1] // kv_heads
    queries = q.view(count, kv_heads, group, -1).permute(1, 2, 0, 3)
    keys = k.permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1)
    values = v.permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1)
    out, lse = _attend(queries, keys, values, True, scale)  # [kv_heads, group, tokens, ...]
    return (
        out.permute(2, 0, 1, 3).reshape(count, q.shape[1], -1),
        lse.permute(2, 0, 1).reshape(count, q.shape[1]),
    )


def _attend_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk over all of its prefix; the heads of a group become one long query."""
    count, kv_heads = q.shape[0], k.shape[1]
    group = q.shape[1] // kv_heads
    queries = q.view(count, kv_heads, group, -1).permute(1, 2, 0, 3)
    queries = queries.reshape(1, kv_heads, group * count, -1)
    out, lse = _attend(
        queries, k.permute(1, 0, 2).unsqueeze(0), v.permute(1, 0, 2).unsqueeze(0), False, scale
    )
    out = out.view(kv_heads, group, count, -1).permute(2, 0, 1, 3)
    lse = lse.view(kv_heads, group, count).permute(2, 0, 1)
    return out.reshape(count, q.shape[1], -1), lse.reshape(count, q.shape[1])


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and its log-sum-exp; all [batch, heads, tokens, dim]."""
    if q.device.type == "cpu" and v.shape[-1] == q.shape[-1]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, scale=scale
        )
        return out, lse
    step = max(1, MAX_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    parts = [
        _attend_block(q[:, :, i : i + step], k, v, i if causal else None, scale)
        for i in range(0, q.shape[2], step)
    ]
    return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)


def _attend_block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Some queries over all keys; with `first`, query i sees keys up to first + i."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if first is not None:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores.masked_fill_(future.triu_(first + 1), float("-inf"))
    lse = scores.logsumexp(-1)
    return scores.sub_(lse.unsqueeze(-1)).exp_().to(v.dtype) @ v, lse


def _join(
    a: torch.Tensor, a_lse: torch.Tensor, b: torch.Tensor, b_lse: torch.Tensor
) -> torch.Tensor:
    """Attention over the union of two sets of keys, from the attention over each."""
    share = torch.sigmoid(b_lse - a_lse).unsqueeze(-1)
    return torch.lerp(a.float(), b.float(), share)
