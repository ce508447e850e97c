"""The parts of XLA's programs that may be given away: instructions and their arrays, by allow-list; no constants, no literals, no text.

Instructions keep their names, as kernels do, which are named after them. Arguments, scopes and directories get other names. Numbers that only
distinguish things are assigned again, since a list of numbers may be a text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from advisor.sources.jax import hlo, programs, scopes
from advisor.sources.jax.attention import _ATTRIBUTE
from advisor.sources.jax.hlo import FIELD, SAID, STACK
from advisor.sources.limits import LARGEST
from advisor.sources.protobuf import Value, fields, message, text, written
from advisor.sources.redact.names import Names


class _Given:
    """New names and numbers of a program."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.instructions: dict[int, int] = {}
        self.computations: dict[int, int] = {}


Kept = Callable[[Value, _Given], "Value | bytes | str | None"]
"""The redacted value of a field, None for nothing."""

_OPCODE = re.compile(r"[a-z]{1,20}(?:-[a-z]{1,20}){0,5}")
_TARGET = re.compile(r"[A-Za-z_][\w$.]{0,120}")
_SETTING = re.compile(r"[A-Z][A-Z0-9_]{0,40}|\d{1,18}")
_SETTINGS = frozenset({
    "gemm_backend_config", "dot_dimension_numbers", "lhs_contracting_dimensions", "rhs_contracting_dimensions", "lhs_batch_dimensions", "rhs_batch_dimensions",
    "epilogue", "selected_algorithm", "cudnn_conv_backend_config", "algorithm", "algo_id", "cudnn_fmha_backend_config", "mask_type", "sliding_window_length",
    "intermediate_tensor_shape", "dimensions", "element_type",
})  # fmt: skip
"""Keys of a library call's settings that are read, and those around them."""
_ATTRIBUTES = frozenset({"input_batch", "attn_heads", "q_max_seqlen", "kv_max_seqlen", "qk_head_dim", "v_head_dim", "mask_type", "window_size_left"})
_DEEPEST = _DIMENSIONS = hlo._DEEPEST_TUPLE  # no array of a program has more dimensions either
_WRAPPED = re.compile(r"(?P<how>[A-Za-z_]\w*)\((?P<what>.*)\)")
"""A transformation and its operand."""


def program(name: str, names: Names) -> str:
    """A program's name with its number, `jit_step(12)`, as its events have it without."""
    function, _, number = name.removesuffix(")").rpartition("(")
    known = function and name.endswith(")") and number.isascii() and number.isdecimal() and len(number) < 21
    return f"{names.function(function)}({number})" if known else names.function(name)


def path(name: str, names: Names) -> str:
    """The origin of an op, `jit(step)/mlp/dot_general`: transformations and functions stay, scopes are ranges."""
    *around, last = scopes._parts(name)
    return "/".join([*(_step(part, names) for part in around), _step(last, names) if "(" in last else names.op(last)])


def _step(part: str, names: Names, depth: int = 0) -> str:
    match = _WRAPPED.fullmatch(part)
    if match is None or depth > _DEEPEST:
        return part if part in scopes._OWN else names.range(part)
    how = names.function(match["how"])
    if how in scopes._FUNCTIONS:
        return f"{how}({names.function(match['what'])})"
    return f"{how}({'/'.join(_step(inner, names, depth + 1) for inner in scopes._parts(match['what']))})"


def redacted(proto: memoryview, names: Names) -> bytes:
    """A serialised HloProto with the data that the reader uses. Raises ValueError if it is damaged."""
    return _message(proto, _PROTO, _Given(names))


def _message(data: memoryview, kept: dict[int, Kept], given: _Given) -> bytes:
    out = b""
    for number, value in fields(data):
        made = kept[number](value, given) if number in kept else None
        if made is not None:
            out += written(number, made)
    return out


def _redact_nested(kept: dict[int, Kept]) -> Kept:
    return lambda value, given: _message(message(value), kept, given)


def _number(value: Value, given: _Given) -> int | None:
    return value if isinstance(value, int) else None


def _packed(numbers: Iterable[int]) -> bytes:
    return b"".join(written(1, number)[1:] for number in numbers)


def _anew(which: Callable[[_Given], dict[int, int]]) -> Kept:
    """Numbers of instructions or computations, a single number or many, counted in the order of their occurrence."""

    def kept(value: Value, given: _Given) -> bytes | int:
        known = which(given)
        made = [known.setdefault(number, len(known) + 1) for number in hlo.numbers([value])]
        return made[0] if isinstance(value, int) else _packed(made)

    return kept


_INSTRUCTIONS, _COMPUTATIONS = _anew(lambda given: given.instructions), _anew(lambda given: given.computations)


def _small(value: Value, given: _Given) -> bytes | None:
    """Numbers of dimensions, or of a short list: small numbers."""
    made = hlo.numbers([value])
    return _packed(made) if max(made, default=0) < _DIMENSIONS else None


def _group(value: Value, given: _Given) -> bytes:
    """The devices of a group: how many."""
    return _packed(range(len(hlo.numbers([value]))))


def _shape(value: Value, given: _Given, depth: int = 0) -> bytes:
    """Type and sizes of an array, or of each of a tuple; none of an array that is larger than any."""
    parts = hlo.by_number(message(value))
    out = written(hlo.SHAPE.element_type, number) if isinstance(number := parts.get(hlo.SHAPE.element_type, [b""])[0], int) else b""
    sizes = hlo.numbers(parts.get(hlo.SHAPE.dimensions, []))
    if sizes and math.prod(map(float, sizes)) < LARGEST and len(sizes) < _DIMENSIONS:
        out += written(hlo.SHAPE.dimensions, _packed(sizes))
    for part in parts.get(hlo.SHAPE.tuple_shapes, []) if depth < _DEEPEST else []:
        out += written(hlo.SHAPE.tuple_shapes, _shape(part, given, depth + 1))
    return out


def _opcode(value: Value, given: _Given) -> str | None:
    return opcode if _OPCODE.fullmatch(opcode := text(value)) else None


def _target(value: Value, given: _Given) -> str:
    """The function of a library that an instruction calls."""
    clean = given.names.plain(text(value))
    return clean if _TARGET.fullmatch(clean) else given.names.given("call", text(value))


def _settings(value: Value, given: _Given) -> str | None:
    """A library call's settings: of JSON those that are read, of attributes the small numbers."""
    try:
        return json.dumps(_chosen(json.loads(text(value))))
    except (ValueError, RecursionError):
        said = [f"{name} = {number} : i64" for name, number in _ATTRIBUTE.findall(text(value)) if name in _ATTRIBUTES]
        return f"{{{', '.join(said)}}}" if said else None


def _chosen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: kept for key, one in value.items() if key in _SETTINGS and (kept := _chosen(one)) is not None}
    if isinstance(value, list):
        return [kept for one in value if (kept := _chosen(one)) is not None]
    return value if isinstance(value, int) or (isinstance(value, str) and _SETTING.fullmatch(value)) else None


_METADATA: dict[int, Kept] = {
    SAID.op_name: lambda value, given: path(text(value), given.names),
    SAID.source_file: lambda value, given: given.names.path(text(value)),
    SAID.source_line: _number,
    SAID.stack_frame_id: _number,
}
_ONLY_NUMBERS: dict[int, Kept] = dict.fromkeys(range(1, 16), _number)
_INSTRUCTION: dict[int, Kept] = {
    FIELD.name: lambda value, given: given.names.kernel(text(value)),
    FIELD.opcode: _opcode,
    FIELD.shape: _shape,
    FIELD.metadata: _redact_nested(_METADATA),
    FIELD.parameter_number: _number,
    FIELD.window: _redact_nested({1: _redact_nested(_ONLY_NUMBERS)}),
    FIELD.convolution_dimension_numbers: _redact_nested(_ONLY_NUMBERS),
    FIELD.custom_call_target: _target,
    FIELD.dot_dimension_numbers: _redact_nested(dict.fromkeys(range(1, 5), _small)),
    FIELD.id: _INSTRUCTIONS,
    FIELD.operand_ids: _INSTRUCTIONS,
    FIELD.called_computation_ids: _COMPUTATIONS,
    FIELD.backend_config: _settings,
    FIELD.replica_groups: _redact_nested({programs.GROUP.replica_ids: _group}),
    FIELD.precision_config: _redact_nested({programs.PRECISION.operand_precision: _small}),
    FIELD.collective_device_list: _redact_nested(
        {
            programs.DEVICES.replica_groups: _redact_nested({programs.GROUP.replica_ids: _group}),
            programs.DEVICES.iota_replica_group_list: _redact_nested(_ONLY_NUMBERS),
        }
    ),
}
_COMPUTATION: dict[int, Kept] = {
    hlo.COMPUTATION.instructions: _redact_nested(_INSTRUCTION),
    hlo.COMPUTATION.id: _COMPUTATIONS,
    hlo.COMPUTATION.root_id: _INSTRUCTIONS,
}
_FRAMES: dict[int, Kept] = {
    STACK.file_names: lambda value, given: given.names.path(text(value)),
    STACK.file_locations: _redact_nested(_ONLY_NUMBERS),
    STACK.stack_frames: _redact_nested(_ONLY_NUMBERS),
}
_MODULE: dict[int, Kept] = {
    programs.MODULE.computations: _redact_nested(_COMPUTATION),
    programs.MODULE.entry_computation_id: _COMPUTATIONS,
    programs.MODULE.stack_frame_index: _redact_nested(_FRAMES),
}
_PROTO: dict[int, Kept] = {programs.PROTO.hlo_module: _redact_nested(_MODULE)}
