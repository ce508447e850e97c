"""What the engine computes beside matrix products: kernels in Triton on a GPU, the same in plain torch elsewhere."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU: the functions below do without
    triton = None

BASE, EPSILON = 10_000.0, 1e-6

if triton is not None:

    @triton.jit
    def add_rms_norm_kernel(x, residual, weight, out, width, EPS: tl.constexpr, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.arange(0, BLOCK)
        inside = columns < width
        value = tl.load(x + row * width + columns, inside, 0.0).to(tl.float32) + tl.load(residual + row * width + columns, inside, 0.0).to(tl.float32)
        tl.store(residual + row * width + columns, value, inside)
        scale = tl.rsqrt(tl.sum(value * value) / width + EPS)
        tl.store(out + row * width + columns, value * scale * tl.load(weight + columns, inside, 0.0).to(tl.float32), inside)

    @triton.jit
    def silu_and_mul_kernel(x, out, width, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.arange(0, BLOCK)
        inside = columns < width
        gate = tl.load(x + row * 2 * width + columns, inside, 0.0).to(tl.float32)
        up = tl.load(x + row * 2 * width + width + columns, inside, 0.0).to(tl.float32)
        tl.store(out + row * width + columns, gate * tl.sigmoid(gate) * up, inside)

    @triton.jit
    def rotary_and_store_kvcache_kernel(
        qkv, query, cached_k, cached_v, positions, slots, log_base, HEADS: tl.constexpr, KV: tl.constexpr, WIDTH: tl.constexpr
    ):
        """Program (row, head): heads of queries, then of keys and their values."""
        row, head, half = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH // 2)
        source = qkv + row * (HEADS + 2 * KV) * WIDTH + head * WIDTH
        angle = tl.load(positions + row).to(tl.float32) * tl.exp(-2.0 * half.to(tl.float32) / WIDTH * log_base)
        left, right = tl.load(source + half).to(tl.float32), tl.load(source + WIDTH // 2 + half).to(tl.float32)
        turned_left, turned_right = left * tl.cos(angle) - right * tl.sin(angle), right * tl.cos(angle) + left * tl.sin(angle)
        if head < HEADS:
            target = query + row * HEADS * WIDTH + head * WIDTH
            tl.store(target + half, turned_left)
            tl.store(target + WIDTH // 2 + half, turned_right)
        else:
            at = (tl.load(slots + row).to(tl.int64) * KV + head - HEADS) * WIDTH
            tl.store(cached_k + at + half, turned_left)
            tl.store(cached_k + at + WIDTH // 2 + half, turned_right)
            whole = tl.arange(0, WIDTH)
            tl.store(cached_v + at + whole, tl.load(source + KV * WIDTH + whole))

    @triton.jit
    def paged_attention_kernel(
        query, cached_k, cached_v, tables, lengths, out, scale, most_pages,
        HEADS: tl.constexpr, KV: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """Program (request, head of keys): all queries that share it, over the request's pages."""
        request, kv = tl.program_id(0), tl.program_id(1)
        group, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
        at = query + request * HEADS * WIDTH + (kv * (HEADS // KV) + group[:, None]) * WIDTH + columns[None, :]
        mine = group[:, None] < HEADS // KV
        q = tl.load(at, mine, 0.0)
        highest, total = tl.full((ROWS,), -1e30, tl.float32), tl.zeros((ROWS,), tl.float32)
        summed = tl.zeros((ROWS, WIDTH), tl.float32)
        length = tl.load(lengths + request)
        for first in range(0, length, KEYS):
            key = first + tl.arange(0, KEYS)
            there = key < length
            page = tl.load(tables + request * most_pages + key // PAGE, there, 0).to(tl.int64)
            slot = ((page * PAGE + key % PAGE) * KV + kv) * WIDTH
            k = tl.load(cached_k + slot[None, :] + columns[:, None], there[None, :], 0.0)
            score = tl.where(there[None, :], tl.dot(q, k) * scale, -1e30)
            higher = tl.maximum(highest, tl.max(score, 1))
            weight = tl.exp(score - higher[:, None])
            faded = tl.exp(highest - higher)
            v = tl.load(cached_v + slot[:, None] + columns[None, :], there[:, None], 0.0)
            summed = summed * faded[:, None] + tl.dot(weight.to(v.dtype), v)
            total, highest = total * faded + tl.sum(weight, 1), higher
        tl.store(out + request * HEADS * WIDTH + (kv * (HEADS // KV) + group[:, None]) * WIDTH + columns[None, :], summed / total[:, None], mine)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """x (rows, width) is added to the residual, in place; the norm of the sum."""
    if x.is_cuda:
        out = torch.empty_like(x)
        add_rms_norm_kernel[(len(x),)](x, residual, weight, out, x.shape[1], EPSILON, triton.next_power_of_2(x.shape[1]), num_warps=8)
        return out
    residual += x
    return F.rms_norm(residual, weight.shape, weight, EPSILON)


def silu_and_mul(x: Tensor) -> Tensor:
    """(rows, 2 width) to (rows, width)."""
    if x.is_cuda:
        width = x.shape[1] // 2
        out = x.new_empty(len(x), width)
        silu_and_mul_kernel[(len(x),)](x, out, width, triton.next_power_of_2(width), num_warps=8)
        return out
    gate, up = x.chunk(2, dim=1)
    return F.silu(gate) * up


def rotate_and_store(qkv: Tensor, positions: Tensor, slots: Tensor, cache: tuple[Tensor, Tensor], heads: int, kv: int) -> Tensor:
    """qkv (rows, heads + 2 kv, width). Keys and values go to their slots of the cache (slots, kv, width); returns queries (rows, heads, width)."""
    rows, _, width = qkv.shape
    if qkv.is_cuda:
        query = qkv.new_empty(rows, heads, width)
        rotary_and_store_kvcache_kernel[(rows, heads + kv)](qkv, query, *cache, positions, slots, math.log(BASE), heads, kv, width, num_warps=1)
        return query
    angle = positions[:, None, None] * BASE ** (-torch.arange(0, width, 2, device=qkv.device) / width)
    left, right = qkv[:, : heads + kv].chunk(2, dim=2)
    turned = torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=2).to(qkv.dtype)
    cache[0][slots], cache[1][slots] = turned[:, heads:], qkv[:, heads + kv :]
    return turned[:, :heads]


def paged_attention(query: Tensor, cache: tuple[Tensor, Tensor], tables: Tensor, lengths: Tensor, page: int) -> Tensor:
    """One query a request (requests, heads, width) over the pages of each (requests, most pages), so many keys long."""
    requests, heads, width = query.shape
    kv = cache[0].shape[1]
    if query.is_cuda:
        out = torch.empty_like(query)
        paged_attention_kernel[(requests, kv)](
            query, *cache, tables, lengths, out, width**-0.5, tables.shape[1], heads, kv, width, page, max(16, heads // kv), 64, num_warps=4
        )
        return out
    made = []
    for q, table, length in zip(query, tables, lengths.tolist(), strict=True):
        slots = slots_of(table, length, page)
        made.append(attention(q[None], cache[0][slots], cache[1][slots]))
    return torch.cat(made)


def slots_of(table: Tensor, length: int, page: int) -> Tensor:
    """(length,) where in the cache a request's keys are."""
    at = torch.arange(length, device=table.device)
    return table[at // page] * page + at % page


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The last queries of a sequence (queries, heads, width) over all of its keys (keys, kv, width), each over those up to its own."""
    queries, keys = len(query), len(key)
    q, k, v = (one.transpose(0, 1)[None] for one in (query, key, value))
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)
