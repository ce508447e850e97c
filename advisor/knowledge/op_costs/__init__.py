"""FLOPs and bytes of a framework op, from the inputs that Kineto records.

`OPS` is the table; a new op is a line in it. An op outside the table, or without the recorded inputs, has the cost None. Ops nest (aten::linear
above aten::addmm): ask for the innermost op with a cost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.knowledge.op_costs import products as p
from advisor.knowledge.op_costs import streams as s
from advisor.knowledge.op_costs.arguments import DTYPE_BYTES, Formula, Inputs, NotRecorded
from advisor.knowledge.op_tokens.families import Family

__all__ = ["DTYPE_BYTES", "OPS", "Cost", "op_cost"]


class Cost(msgspec.Struct, frozen=True):
    """The minimum work of an op."""

    flops: float
    """Floating-point operations; a multiply-add counts two."""
    bytes: float
    """Device memory read and written, each operand once."""
    kind: str
    """A `Family`."""

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flops / self.bytes if self.bytes else 0.0


def _same_shape_cost(formula: Formula, names: str) -> dict[str, Formula]:
    return dict.fromkeys(names.split(), formula)


_NEIGHBOURS = (
    {f"nearest{axes}d": 1 for axes in (1, 2, 3)} | {f"{way}linear{axes}d": 2**axes for axes, way in enumerate(("", "bi", "tri"), 1)} | {"bicubic2d": 4**2}
)
"""Elements that each one of an enlarged image is made from."""

_TABLE: dict[Family, dict[str, Formula]] = {
    Family.GEMM: {
        "mm": p.mm, "addmm": p.addmm, "_addmm_activation": p.addmm, "_int_mm": p.int_mm, "_scaled_mm": p.scaled_mm,
        "bmm": p.bmm, "baddbmm": p.baddbmm, "mv": p.mv, "addmv": p.addmv, "dot": p.dot, "vdot": p.dot,
        "linear": p.linear, "matmul": p.matmul,
    },
    # Positions of stride, padding, dilation, groups and the others in each op's schema; a test compares them with torch's.
    Family.CONV: {
        **_same_shape_cost(p.Convolution(3, 4, 5, 8, bias=2, transposed=6, output_padding=7),
                "convolution _convolution convolution_overrideable"),
        **_same_shape_cost(p.Convolution(3, 4, 5, 6, bias=2), "conv1d conv2d conv3d"),
        **_same_shape_cost(p.Convolution(3, 4, 7, 6, bias=2, output_padding=5), "conv_transpose1d conv_transpose2d conv_transpose3d"),
        "cudnn_convolution": p.Convolution(3, 2, 4, 5),
        "cudnn_convolution_transpose": p.Convolution(4, 2, 5, 6, output_padding=3),
        "cudnn_convolution_relu": p.Convolution(3, 4, 5, 6, bias=2),
        "cudnn_convolution_add_relu": p.Convolution(5, 6, 7, 8, bias=4, added=2),
        **_same_shape_cost(p.Convolution(4, 3, 5, 6, bias=2), "miopen_convolution miopen_depthwise_convolution mkldnn_convolution"),
        "miopen_convolution_transpose": p.Convolution(5, 3, 6, 7, bias=2, output_padding=4),
        "convolution_backward": p.convolution_backward,
    },
    # Position of is_causal first. [batch, heads, sequence, head] unless heads_first=False.
    Family.ATTENTION: {
        "scaled_dot_product_attention": p.Attention(5, bias=3),
        "_scaled_dot_product_flash_attention": p.Attention(4),
        "_scaled_dot_product_efficient_attention": p.Attention(6, bias=3),
        "_scaled_dot_product_cudnn_attention": p.Attention(6, bias=3),
        "_scaled_dot_product_fused_attention_overrideable": p.Attention(5, bias=3),
        "_scaled_dot_product_flash_attention_for_cpu": p.Attention(4, bias=5),
        "_flash_attention_forward": p.Attention(8, packed=3, heads_first=False),
        "_efficient_attention_forward": p.Attention(9, bias=3, packed=4, heads_first=False),
        "_cudnn_attention_forward": p.Attention(10, bias=3, packed=4),
        "_scaled_dot_product_flash_attention_backward": p.AttentionBackward(11, out=4, packed=6),
        "_scaled_dot_product_efficient_attention_backward": p.AttentionBackward(11, out=5, bias=4),
        "_scaled_dot_product_cudnn_attention_backward": p.AttentionBackward(14, out=4, bias=8),
        "_scaled_dot_product_fused_attention_overrideable_backward": p.AttentionBackward(13, out=6, bias=4),
        "_scaled_dot_product_flash_attention_for_cpu_backward": p.AttentionBackward(7, out=4, bias=8),
        "_flash_attention_backward": p.AttentionBackward(11, out=4, packed=6, heads_first=False),
        "_efficient_attention_backward": p.AttentionBackward(14, out=5, bias=4, packed=6, heads_first=False),
        "_cudnn_attention_backward": p.AttentionBackward(14, out=4, bias=8, packed=9),
    },
    # Mean, centred square, normalise, scale and shift: 8 FLOPs an element, 5 without the mean, twice that backward.
    Family.NORM: {
        **_same_shape_cost(s.stream(8), "native_layer_norm layer_norm native_batch_norm batch_norm _native_batch_norm_legit "
                             "cudnn_batch_norm miopen_batch_norm native_group_norm group_norm instance_norm"),
        **_same_shape_cost(s.stream(5), "_fused_rms_norm rms_norm"),
        **_same_shape_cost(s.stream(16), "native_layer_norm_backward native_batch_norm_backward cudnn_batch_norm_backward "
                              "miopen_batch_norm_backward native_group_norm_backward"),
        "_fused_rms_norm_backward": s.stream(10),
    },
    Family.SOFTMAX: {
        **_same_shape_cost(s.softmax(), "_softmax _log_softmax"),
        **_same_shape_cost(s.softmax(dtype=2), "softmax log_softmax"),
        **_same_shape_cost(s.softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    },
    Family.ELEMENTWISE: {
        **_same_shape_cost(s.elementwise(2), "add sub rsub mul multiply subtract pow maximum minimum fmax fmin atan2 fmod remainder "
                                  "floor_divide bitwise_and bitwise_or bitwise_xor threshold_backward gelu_backward "
                                  "silu_backward sigmoid_backward tanh_backward leaky_relu_backward hardtanh_backward "
                                  "hardswish_backward elu_backward softplus_backward logit_backward native_dropout_backward"),
        **_same_shape_cost(s.elementwise(2, result="float"), "div true_divide divide"),
        **_same_shape_cost(s.elementwise(2, result="bool"), "eq ne lt le gt ge logical_and logical_or logical_xor"),
        **_same_shape_cost(s.elementwise(3), "addcmul addcdiv clamp lerp masked_fill mse_loss_backward"),
        **_same_shape_cost(s.elementwise(1), "neg abs relu square sign floor ceil round trunc threshold clamp_min clamp_max leaky_relu "
                                  "hardtanh hardswish hardsigmoid elu bitwise_not nan_to_num"),
        **_same_shape_cost(s.elementwise(1, result="float"), "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf sigmoid "
                                                  "reciprocal gelu silu mish softplus logit log_sigmoid_forward"),
        **_same_shape_cost(s.elementwise(1, result="bool"), "logical_not isnan isinf isfinite"),
        "where": s.select_elements,
        "native_dropout": s.native_dropout,
        **{f"upsample_{name}{back}": of(neighbours) for name, neighbours in _NEIGHBOURS.items() for back, of in
           (("", s.interpolate), ("_backward", s.interpolate_backward))},
    },
    Family.REDUCTION: {
        "sum": s.reduction(dtype=3, result="long int"),
        "mean": s.reduction(dtype=3),
        "prod": s.reduction(dtype=3, result="long int"),
        **_same_shape_cost(s.reduction(), "amax amin logsumexp"),
        **_same_shape_cost(s.reduction(result="bool"), "any all"),
        **_same_shape_cost(s.reduction(index=True), "argmax argmin"),
        **_same_shape_cost(s.extremum, "max min"),
        **_same_shape_cost(s.reduction(flops=4), "std var"),
        **_same_shape_cost(s.reduction(flops=4, outputs=2), "std_mean var_mean"),
        "linalg_vector_norm": s.reduction(dim=2, dtype=4, flops=2),
    },
    Family.EMBEDDING: {
        "embedding": s.embedding, "embedding_dense_backward": s.embedding_dense_backward,
        "index_select": s.index_select, "gather": s.gather,
        "scatter": s.scatter(accumulate=False), "scatter_add": s.scatter(accumulate=True),
        "index_copy": s.index_into(accumulate=False), "index_add": s.index_into(accumulate=True),
    },
    Family.COPY: {"copy": s.copy_into, "_to_copy": s.to_copy, "clone": s.clone, "cat": s.concatenate, "stack": s.concatenate},
    Family.FILL: {"fill": s.fill, "zero": s.fill},
    Family.RANDOM: _same_shape_cost(s.generate, "uniform normal bernoulli random exponential"),
    Family.SORT_SCAN: _same_shape_cost(s.elementwise(1, result="long int"), "cumsum cumprod"),
    Family.OPTIMIZER: {
        **_same_shape_cost(s.foreach(), "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_sqrt _foreach_neg _foreach_pow "
                             "_foreach_reciprocal _foreach_exp _foreach_abs _foreach_sign _foreach_maximum _foreach_minimum "
                             "_foreach_clamp_min _foreach_clamp_max _foreach_lerp"),
        **_same_shape_cost(s.foreach(flops=3), "_foreach_addcmul _foreach_addcdiv"),
        "_foreach_norm": s.foreach(flops=2, writes=0),
        "_foreach_zero": s.foreach(flops=0, reads=0),
        "_foreach_copy": s.foreach_copy,
        "_amp_foreach_non_finite_check_and_unscale": s.foreach(),
        "_fused_adam": s.fused_adam, "_fused_adamw": s.fused_adam, "_fused_sgd": s.fused_sgd,
    },
}  # fmt: skip

OPS: dict[str, tuple[Family, Formula]] = {name: (kind, formula) for kind, ops in _TABLE.items() for name, formula in ops.items()}
"""Family and formula of each op, by its name without namespace and without the `_` of the in-place form."""

_ONLY_IN_PLACE = {"copy", "fill", "zero", "uniform", "normal", "bernoulli", "random", "exponential"}
"""Their out-of-place forms take other arguments."""


def op_cost(
    name: str,
    dims: list[Any],
    types: list[str],
    concrete: list[str] | None = None,
    strides: list[Any] | None = None,
    *,
    list_item_bytes: int = 0,
) -> Cost | None:
    """The cost of an `aten::` op from Kineto's "Input Dims", "Input type", "Concrete Inputs" and "Input Strides", parsed.

    Without strides, an expanded input counts at its expanded size. Kineto does not record element types of tensor lists, so cat, foreach and fused
    optimizers have a cost only with `list_item_bytes`. None for an op outside `OPS`, or if the record is insufficient.
    """
    namespace, _, op = name.rpartition("::")
    if namespace != "aten" or not dims or len(dims) != len(types):
        return None
    base = op[:-1] if op.endswith("_") else op
    if base not in OPS or (base in _ONLY_IN_PLACE and base == op):
        return None
    kind, formula = OPS[base]
    try:
        flops, moved = formula(Inputs(op, dims, types, concrete or [], strides or [], list_item_bytes))
    except (NotRecorded, ValueError, IndexError, TypeError):  # shapes of another rank, or no shapes at all, where lists belong
        return None
    return Cost(flops, moved, kind)
