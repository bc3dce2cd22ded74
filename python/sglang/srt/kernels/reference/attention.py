"""Attention over the paged KV pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
    separately and joined by their log-sum-exp, so no mask over the prefix is ever made.
    """
    out = q.new_empty((*q.shape[:2], v.shape[-1]))
    for i, slots in enumerate(prefix_slots):
        rows = slice(bounds[i], bounds[i + 1])
        own, own_lse = _attend_causal(q[rows], k[rows], v[rows], scale)
        if len(slots):
            past, past_lse = _attend_all(q[rows], kv[0][slots], kv[1][slots], scale)
            own = _join(own, own_lse, past, past_lse)
        out[rows] = own.to(out.dtype)
    return out


def attention_decode(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One query a row over all its tokens, the new one included.

    q: [rows, heads, dim]; slots: [rows, longest] page tables (anything beyond a row's length);
    lens: [rows]. Returns [rows, heads, v_dim].
    """
    num_rows, longest = slots.shape
    keys = kv[0][slots].transpose(1, 2)  # [rows, kv_heads, longest, dim]
    values = kv[1][slots].transpose(1, 2)
    grouped = q.view(num_rows, keys.shape[1], -1, q.shape[-1])  # the group is the query dimension
    valid = torch.arange(longest, device=q.device) < lens.unsqueeze(1)
    out = F.scaled_dot_product_attention(
        grouped, keys, values, attn_mask=valid[:, None, None, :], scale=scale
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
    out, lse = _flash(queries, keys, values, True, scale)  # [kv_heads, group, tokens, ...]
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
    out, lse = _flash(
        queries, k.permute(1, 0, 2).unsqueeze(0), v.permute(1, 0, 2).unsqueeze(0), False, scale
    )
    out = out.view(kv_heads, group, count, -1).permute(2, 0, 1, 3)
    lse = lse.view(kv_heads, group, count).permute(2, 0, 1)
    return out.reshape(count, q.shape[1], -1), lse.reshape(count, q.shape[1])


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and its log-sum-exp; all [batch, heads, tokens, dim]."""
    if q.device.type == "cpu" and v.shape[-1] == q.shape[-1]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, scale=scale
        )
        return out, lse
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if causal:
        count = scores.shape[-1]
        future = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(v.dtype) @ v, lse


def _join(
    a: torch.Tensor, a_lse: torch.Tensor, b: torch.Tensor, b_lse: torch.Tensor
) -> torch.Tensor:
    """Attention over the union of two sets of keys, from the attention over each."""
    share = torch.sigmoid(a_lse - b_lse).unsqueeze(-1)
    return a * share + b * (1 - share)
