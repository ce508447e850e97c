"""Least work of an HLO instruction: FLOPs, a multiply-add as two, and bytes, each array once.

As XLA counts them (https://github.com/openxla/xla/blob/main/xla/service/hlo_cost_analysis.cc): an operand that a fusion only slices counts by its
slices."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from advisor.sources.jax.attention import attention_flops, is_attention
from advisor.sources.jax.hlo import FIELD, Computation, Parts, Shape, by_number, numbers, text_of, whole_fields
from advisor.sources.limits import LARGEST
from advisor.sources.protobuf import message, numbers_of

_NOT_COUNTED = re.compile(
    r"parameter|constant|tuple|get-tuple-element|bitcast|while|conditional|call|after-all|infeed|outfeed|send.*|recv.*|copy-.*|async-.*"
    r"|all-.*|reduce-scatter.*|ragged-all.*|collective-.*|partition-id|replica-id|domain|opt-barrier"
)
"""No kernel of the device runs these, or their operands are not the moved bytes."""

_ARITHMETIC = re.compile(
    r"add|subtract|multiply|divide|maximum|minimum|power|negate|abs|sqrt|rsqrt|cbrt|exponential(-minus-one)?|log(-plus-one|istic)?|tanh?|sine"
    r"|cosine|erf|atan2|remainder|floor|ceil|round-.*|sign|compare|select|clamp"
)
_SLICES = ("slice", "dynamic-slice", "gather")
_REAL = ("float", "bfloat", "complex")
_GEMM = re.compile(r"^__cublas\$")
_CONVOLUTION = re.compile(r"^__cudnn\$conv(?P<kind>Forward|BiasActivationForward|ForwardGraph|BackwardInput|BackwardFilter)$")
_DOT, _CONVOLVED = numbers_of("DotDimensionNumbers"), numbers_of("ConvolutionDimensionNumbers")
_WINDOW, _DIMENSION = numbers_of("Window"), numbers_of("WindowDimension")


class Work(NamedTuple):
    """NaN if it is not known."""

    flops: float
    bytes: float


UNKNOWN = Work(math.nan, math.nan)


def work_of(home: Computation, at: int, called: list[Computation]) -> Work:
    """The work of the instruction at a place of a computation, with the computations that it calls."""
    parts = home.parts(at)
    opcode = text_of(parts, FIELD.opcode)
    if opcode == "fusion" and called:
        found = called[0].cached_answer(_of_body)
    elif opcode == "custom-call":
        found = _of_library(home, parts, at)
    elif not _NOT_COUNTED.fullmatch(opcode):
        found = Work(_flops(home, at), _moved(home, at, opcode))
    else:
        return UNKNOWN
    return found if all(0 <= number < LARGEST for number in found) else UNKNOWN


def _of_body(body: Computation) -> Work:
    """The work of a fusion."""
    return Work(sum(_flops(body, i) for i in range(len(body.names))), _read(body) + _written(body, body.root))


def _total(arrays: Iterable[Shape]) -> float:
    return sum(array.bytes for array in arrays)


def _flops(home: Computation, at: int) -> float:
    """An instruction's own computation."""
    parts = home.parts(at)
    opcode, made = text_of(parts, FIELD.opcode), home.results(at)
    taken = home.operands(parts)
    if not made:
        return 0.0
    if opcode == "dot" and taken:
        said = by_number(message(parts[FIELD.dot_dimension_numbers][0])) if FIELD.dot_dimension_numbers in parts else {}
        return 2 * made[0].elements * _sizes(taken[0], numbers(said.get(_DOT.lhs_contracting_dimensions, [])))
    if opcode == "convolution" and len(taken) > 1:
        return _convolution(parts, made[0], taken[1])
    if not made[0].element.startswith(_REAL):
        return 0.0
    if opcode in ("reduce", "reduce-window") and taken:
        return taken[0].elements
    return made[0].elements if _ARITHMETIC.fullmatch(opcode) else 0.0


def _sizes(array: Shape, dimensions: Iterable[int]) -> float:
    return math.prod(float(array.sizes[d]) for d in dimensions if d < len(array.sizes))


def _convolution(parts: Parts, output: Shape, kernel: Shape) -> float:
    """Each element of the output is a sum over an output feature's part of the kernel. Work that padding saves is included."""
    said = whole_fields(parts[FIELD.convolution_dimension_numbers][0]) if FIELD.convolution_dimension_numbers in parts else {}
    features = _sizes(kernel, [said.get(_CONVOLVED.kernel_output_feature_dimension, 0)])
    window = by_number(message(parts[FIELD.window][0])).get(_WINDOW.dimensions, []) if FIELD.window in parts else []
    dilated = math.prod(float(whole_fields(dimension).get(_DIMENSION.base_dilation, 1) or 1) for dimension in window)
    return 2 * output.elements * kernel.elements / max(features, 1.0) / dilated


def _of_library(home: Computation, parts: Parts, at: int) -> Work:
    """GEMMs of cuBLAS and cuDNN, and attention; the work of other calls is not known."""
    target, taken, made = text_of(parts, FIELD.custom_call_target), home.operands(parts), home.results(at)
    if len(taken) < 2 or not made:
        return UNKNOWN
    # Its last result is the library's workspace.
    moved = _total(taken) + _total(made[:-1] if len(made) > 1 and made[-1].element in ("int8", "uint8") else made)
    if _GEMM.match(target):
        contracted = _contracted(parts)
        return Work(2 * made[0].elements * _sizes(taken[0], contracted), moved) if contracted else UNKNOWN
    if is_attention(target):
        return Work(attention_flops(target, text_of(parts, FIELD.backend_config), taken[0].sizes[-1] if taken[0].sizes else 0), moved)
    if match := _CONVOLUTION.match(target):
        # Output and kernel of the forward pass, whichever of the three this one makes.
        output, kernel = {"BackwardInput": (taken[0], taken[1]), "BackwardFilter": (taken[1], made[0])}.get(match["kind"], (made[0], taken[1]))
        return Work(_convolution(parts, output, kernel), moved)
    return UNKNOWN


def _contracted(parts: Parts) -> list[int]:
    """Dimensions of the left operand that a product of cuBLAS sums over, from its settings, which are JSON."""
    try:
        said: Any = json.loads(text_of(parts, FIELD.backend_config))
        return [int(d) for d in said["gemm_backend_config"]["dot_dimension_numbers"]["lhs_contracting_dimensions"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _moved(home: Computation, at: int, opcode: str) -> float:
    """Bytes of an instruction that is a kernel by itself."""
    taken, made = home.operands(home.parts(at)), _total(home.results(at))
    if opcode in _SLICES:
        return 2 * made + _total(taken[1:])
    if opcode in ("dynamic-update-slice", "scatter"):
        return _total(taken[1:]) * 2
    return _total(taken) + made


def _read(body: Computation) -> float:
    """Bytes that a fusion reads: of each parameter all, or as much as the slices of it have."""
    parameters = {i: _total(body.results(i)) for i in range(len(body.names)) if _opcode(body, i) == "parameter"}
    read = dict.fromkeys(parameters, 0.0)
    for user in range(len(body.names)):
        opcode = _opcode(body, user)
        for position, place in enumerate(body.taken(body.parts(user)) if opcode != "bitcast" else ()):
            if (origin := body.origins[place]) not in read:
                continue
            if opcode in _SLICES and position == 0:
                read[origin] += _total(body.results(user))
            elif not (opcode == "dynamic-update-slice" and position == 0):
                read[origin] = math.inf
    return sum(min(read[at], whole) for at, whole in parameters.items())


def _written(body: Computation, root: int) -> float:
    """Bytes that a fusion writes: of an array that is updated in place only what changes."""
    made = body.taken(body.parts(root)) if _opcode(body, root) == "tuple" else [root]
    return sum(_changed(body, body.origins[at]) for at in made)


def _changed(body: Computation, at: int) -> float:
    taken = body.taken(body.parts(at))
    return _total(body.results(taken[1] if _opcode(body, at) == "dynamic-update-slice" and len(taken) > 1 else at))


def _opcode(body: Computation, at: int) -> str:
    return text_of(body.parts(at), FIELD.opcode)
