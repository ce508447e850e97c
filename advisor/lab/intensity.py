"""Arithmetic intensity of ops by their shapes alone, and what bounds an op on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import Any

from advisor.errors import UsageError, require
from advisor.knowledge.devices import Peaks
from advisor.knowledge.op_costs import DTYPE_BYTES, OPS, Cost, op_cost

_RECORDED = {
    "float64": "double", "float32": "float", "tf32": "float", "float16": "c10::Half", "bfloat16": "c10::BFloat16",
    "float8_e4m3fn": "c10::Float8_e4m3fn", "float8_e5m2": "c10::Float8_e5m2", "int8": "signed char", "int32": "int", "int64": "long int",
    "bool": "bool",
}  # fmt: skip
"""Type names as profiles record them, by those of torch."""

_PRECISION = {"float64": "fp64", "float32": "fp32", "tf32": "tf32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}

LAYERNORM_FLOPS = 10
"""Per element, unfused: mean 1, variance 3, epsilon and root 2, normalise 2, scale and shift 2."""


def cost(op_name: str, shapes: Mapping[str, Any], *, dtype: str = "float32", arguments: Mapping[str, Any] | None = None) -> Cost:
    """FLOPs and least bytes of an op. Arguments as for `estimate_arithmetic_intensity`. Raises UsageError."""
    name = str(dtype).removeprefix("torch.")
    if name not in _RECORDED:
        raise UsageError(f"there is no type {dtype}", f"Types are: {', '.join(_RECORDED)}.")
    item = DTYPE_BYTES[_RECORDED[name]]
    if op_name == "layernorm" and len(shapes) == 1:
        elements = prod(*shapes.values())
        return Cost(float(LAYERNORM_FLOPS * elements), 2.0 * elements * item, OPS["layer_norm"][0])
    if op_name not in OPS:
        near = get_close_matches(op_name, ["layernorm", *OPS], n=3)
        raise UsageError(f"no cost model knows {op_name}", f"Did you mean {', '.join(near)}?" if near else "Names are those of aten ops.")
    # Some ops stand under the name of their in-place form alone.
    for spelled in (op_name, f"{op_name}_"):
        for dims, types, concrete in _calls(spelled, list(shapes.values()), _RECORDED[name], arguments or {}):
            found = op_cost(f"aten::{spelled}", dims, types, concrete, list_item_bytes=item)
            if found is not None:
                return found
    raise UsageError(
        f"the shapes {dict(shapes)} do not determine the cost of {op_name}",
        "Give a shape for each tensor, in the op's order, and what else it needs by name, as arguments={'dim': 1}.",
    )


def _calls(op_name: str, shapes: list[Any], dtype: str, given: Mapping[str, Any]) -> Iterator[tuple[list[Any], list[str], list[str]]]:
    """How a profile would record a call with these tensors: by each of torch's schemas of that op, its defaults filled in."""
    require("torch", extra="lab")
    import torch

    packet = getattr(torch.ops.aten, op_name, None)
    for overload in packet.overloads() if packet else ():
        left = list(shapes)
        dims: list[Any] = []
        types: list[str] = []
        concrete: list[str] = []
        for argument in getattr(packet, overload)._schema.arguments:
            value = given.get(argument.name, argument.default_value)
            is_tensor = "Tensor" in str(argument.type)
            if is_tensor and left:
                shape = left.pop(0)
                listed = "List" in str(argument.type)
                dims.append([list(s) for s in shape] if listed else list(shape))
                types.append("TensorList" if listed else dtype)
                concrete.append("")
                continue
            dims.append([])
            types.append("" if value is None else "Scalar")
            concrete.append("" if value is None else str(value))
        if not left:
            yield dims, types, concrete


def estimate_arithmetic_intensity(op_name: str, shapes: Mapping[str, Any], *, dtype: str = "float32", arguments: Mapping[str, Any] | None = None) -> float:
    """FLOPs per byte of memory traffic, each operand moved once (Williams et al. 2009, "Roofline").

    shapes: of the op's tensors, in the op's order: `matmul` has A and B, `layernorm` has x. Lists of shapes for lists of tensors.

    dtype: of all of them, as torch names it. arguments: other arguments of the op by name, if torch's default does not apply.

    Raises UsageError if no cost model knows the op or the shapes do not suffice."""
    return cost(op_name, shapes, dtype=dtype, arguments=arguments).intensity


@dataclass(frozen=True)
class Bound:
    """The roofline's word on some work. least_us: the shortest time that a device allows; limit: "compute" or "memory"."""

    intensity: float
    ridge: float
    limit: str
    least_us: float


def bound(flops: float, moved_bytes: float, dtype: str, peaks: Peaks | None) -> Bound | None:
    """What limits the work on a device with these peaks, None if the rates of the device or type are not known."""
    precision = _PRECISION.get(dtype)
    if peaks is None or precision is None or not moved_bytes:
        return None
    rate, bandwidth, ridge = peaks.flops_per_s(precision), peaks.bytes_per_s, peaks.ridge(precision)
    if rate is None or bandwidth is None or ridge is None:
        return None
    intensity = flops / moved_bytes
    return Bound(intensity, ridge, "compute" if intensity > ridge else "memory", 1e6 * max(flops / rate, moved_bytes / bandwidth))
