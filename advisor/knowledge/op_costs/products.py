"""Matrix products, convolutions and attention: one multiply-add is two FLOPs, as in `torch.utils.flop_counter`.

Bytes are the least a kernel must move: each operand read once, the result written once.
"""

from __future__ import annotations

from math import prod

import msgspec

from advisor.knowledge.op_costs.arguments import Inputs, NotRecorded, Numbers, Tensor, dtype_bytes


def _product(batch: int, m: int, k: int, n: int, operands: list[Tensor], out_dtype: str) -> Numbers:
    """2·B·M·N·K FLOPs; operands read, B·M·N written. A bias adds bytes only, as the flop counter has it."""
    return 2.0 * batch * m * n * k, sum(tensor.bytes for tensor in operands) + float(batch * m * n * dtype_bytes(out_dtype))


def _out_dtype(op: Inputs, a: Tensor) -> str:
    """`mm(a, b, dtype)` writes another type than it reads."""
    return op.dtype(2, a.dtype) if op.types[2:3] == ["Scalar"] else a.dtype


def _inner(a: int, b: int) -> int:
    if a != b:
        raise NotRecorded("matching inner dimensions")
    return a


def mm(op: Inputs, first: int = 0) -> Numbers:
    """`mm(a, b)`; with `first=1` `addmm(bias, a, b)`."""
    a, b = op.tensor(first), op.tensor(first + 1)
    (m, k), (k2, n) = a.shape, b.shape
    return _product(1, m, _inner(k, k2), n, [*op.tensors(0, first), a, b], _out_dtype(op, a))


def addmm(op: Inputs) -> Numbers:
    return mm(op, first=1)


def int_mm(op: Inputs) -> Numbers:
    a, b = op.tensor(0), op.tensor(1)
    (m, k), (k2, n) = a.shape, b.shape
    return _product(1, m, _inner(k, k2), n, [a, b], "int")


def scaled_mm(op: Inputs) -> Numbers:
    """`_scaled_mm(a, b, scale_a, scale_b, bias?, scale_result?, out_dtype?)`, FP8 operands with scales."""
    a, b = op.tensor(0), op.tensor(1)
    (m, k), (k2, n) = a.shape, b.shape
    return _product(1, m, _inner(k, k2), n, op.tensors(0, 6), op.dtype(6, a.dtype))


def bmm(op: Inputs, first: int = 0) -> Numbers:
    """`bmm(a, b)`; with `first=1` `baddbmm(bias, a, b)`."""
    a, b = op.tensor(first), op.tensor(first + 1)
    (batch, m, k), (_, k2, n) = a.shape, b.shape
    return _product(batch, m, _inner(k, k2), n, [*op.tensors(0, first), a, b], _out_dtype(op, a))


def baddbmm(op: Inputs) -> Numbers:
    return bmm(op, first=1)


def mv(op: Inputs, first: int = 0) -> Numbers:
    """`mv(a, x)`; with `first=1` `addmv(bias, a, x)`."""
    a, x = op.tensor(first), op.tensor(first + 1)
    (m, k), (k2,) = a.shape, x.shape
    return _product(1, m, _inner(k, k2), 1, [*op.tensors(0, first), a, x], a.dtype)


def addmv(op: Inputs) -> Numbers:
    return mv(op, first=1)


def dot(op: Inputs) -> Numbers:
    a, b = op.tensor(0), op.tensor(1)
    (k,), (k2,) = a.shape, b.shape
    return _product(1, 1, _inner(k, k2), 1, [a, b], a.dtype)


def linear(op: Inputs) -> Numbers:
    """`linear(x, weight, bias?)`: x·weightᵀ over the last dimension. Under autocast the op below it has the real types."""
    x, weight = op.tensor(0), op.tensor(1)
    n, k = weight.shape
    return _product(1, prod(x.shape[:-1]), _inner(x.shape[-1], k), n, op.tensors(0, 3), x.dtype)


def matmul(op: Inputs) -> Numbers:
    """`matmul(a, b)` with broadcast batch dimensions (torch.matmul's page); vectors gain a dimension of 1."""
    a, b = op.tensor(0), op.tensor(1)
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    rank = max(len(left), len(right)) - 2
    batches = [(1,) * (rank - len(shape) + 2) + shape[:-2] for shape in (left, right)]
    batch = prod(max(sizes) for sizes in zip(*batches, strict=True))
    return _product(batch, left[-2], _inner(left[-1], right[-2]), right[-1], [a, b], a.dtype)


class Convolution(msgspec.Struct, frozen=True):
    """A forward convolution; input and weight come first, other arguments at the given positions.

    2·∏(weight dims 1..)·∏(out) FLOPs, transposed ∏(in): every weight meets every output, or input, of its channel group (TraceLens `CONV`, torch
    `conv_flop_count`). Output sizes as documented for torch.nn.Conv2d and ConvTranspose2d.
    """

    stride: int
    padding: int
    dilation: int
    groups: int
    bias: int | None = None
    transposed: int | None = None
    """Of an op that serves both; otherwise `output_padding` alone shows it."""
    output_padding: int | None = None
    added: int | None = None

    def __call__(self, op: Inputs) -> Numbers:
        x, weight = op.tensor(0), op.tensor(1)
        kernel = weight.shape[2:]
        spatial = len(kernel)
        turned = self.output_padding is not None if self.transposed is None else op.flag(self.transposed)
        strides, pads, dilations = (op.integers(index, spatial) for index in (self.stride, self.padding, self.dilation))
        sizes = zip(x.shape[-spatial:], kernel, strides, pads, dilations, strict=True)
        if turned and self.output_padding is not None:
            adds = op.integers(self.output_padding, spatial)
            channels = weight.shape[1] * op.integer(self.groups)
            out = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + a for (n, k, s, p, d), a in zip(sizes, adds, strict=True)]
        else:
            channels = weight.shape[0]
            out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
        batch = x.shape[0] if len(x.shape) == spatial + 2 else 1
        numel = batch * channels * prod(out)
        others = [op.optional(index) for index in (self.bias, self.added) if index is not None]
        read = x.bytes + weight.bytes + sum(tensor.bytes for tensor in others if tensor is not None)
        return 2.0 * prod(weight.shape[1:]) * (x.numel if turned else numel), float(read + numel * x.itemsize)


def convolution_backward(op: Inputs) -> Numbers:
    """`convolution_backward(grad_out, x, weight, …, transposed, output_padding, groups, output_mask)`.

    Gradients of input and weight each cost the forward's FLOPs; each is a product of its own with operands read and
    result written; the bias's gradient reads grad_out.
    """
    grad, x, weight = op.tensor(0), op.tensor(1), op.tensor(2)
    mask: list[bool] = op.required(10, list)
    forward = 2.0 * prod(weight.shape[1:]) * (x.numel if op.flag(7) else grad.numel)
    operands = float(grad.bytes + x.bytes + weight.bytes)
    bias = grad.bytes * int(mask[2])
    return forward * (mask[0] + mask[1]), operands * (mask[0] + mask[1]) + bias


class _Attention(msgspec.Struct, frozen=True):
    """Positions of what attention ops name alike."""

    causal: int
    """`is_causal`, or `custom_mask_type`: 0 none, 1 causal from the top left, 2 from the bottom right."""
    bias: int | None = None
    packed: int | None = None
    """Cumulative lengths: if they are given, the work depends on values that no trace holds."""
    heads_first: bool = True
    """[batch, heads, sequence, head size]; else [batch, sequence, heads, head size]."""

    def flops(self, op: Inputs, q: Tensor, k: Tensor, v: Tensor, score: int, value: int) -> float:
        """`score` products of QKᵀ's size and `value` of PV's: 2·B·H_Q·N_Q·N_KV·(score·d_qk + value·d_v).

        Halved where causal and N_Q = N_KV: kernels skip the upper triangle (Dao 2023, "FlashAttention-2", section 4.1).
        The heads of Q count: grouped K and V are reused.
        """
        packed = self.packed is not None and op.optional(self.packed) is not None
        if packed or {len(q.shape), len(k.shape), len(v.shape)} != {4}:
            raise NotRecorded("the lengths of packed sequences")
        heads, queries = q.shape[1:3] if self.heads_first else q.shape[2:0:-1]
        keys = k.shape[2 if self.heads_first else 1]
        whole = 2.0 * q.shape[0] * heads * queries * keys * (score * q.shape[3] + value * v.shape[3])
        causal = op.required(self.causal, int)  # a flag is an integer too
        return whole / 2 if causal and queries == keys else whole

    def mask_bytes(self, op: Inputs) -> int:
        mask = None if self.bias is None else op.optional(self.bias)
        return 0 if mask is None else mask.bytes


class Attention(_Attention, frozen=True):
    """Forward, Q, K and V first: reads them and an additive mask, writes O; the scores stay on the chip.

    FLOPs as in torch `sdpa_flop_count`, which does not halve.
    """

    def __call__(self, op: Inputs) -> Numbers:
        q, k, v = op.tensor(0), op.tensor(1), op.tensor(2)
        out = prod(q.shape[:3]) * v.shape[3] * q.itemsize
        return self.flops(op, q, k, v, score=1, value=1), float(q.bytes + k.bytes + v.bytes + out + self.mask_bytes(op))


class AttentionBackward(_Attention, frozen=True):
    """Backward, grad_out, Q, K and V first: reads them and O, writes dQ, dK and dV.

    The scores are computed again: three products of QKᵀ's size (recompute, dQ, dK) and two of PV's (dV, dP), as in torch `sdpa_backward_flop_count`.
    """

    out: int = 4

    def __call__(self, op: Inputs) -> Numbers:
        grad, q, k, v = (op.tensor(index) for index in range(4))
        read = grad.bytes + op.tensor(self.out).bytes + self.mask_bytes(op)
        return self.flops(op, q, k, v, score=3, value=2), float(read + 2 * (q.bytes + k.bytes + v.bytes))
