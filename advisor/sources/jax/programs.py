"""What XLA compiled, as far as the device ran it: each HLO instruction with the lines and scopes of the program that it comes from.

`HloProto` of https://github.com/openxla/xla/blob/main/xla/service/hlo.proto; only instructions that are asked for are decoded whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from advisor.sources.jax.scopes import scopes_of
from advisor.sources.protobuf import Value, fields, message, text, whole
from advisor.timeline import table

# Numbers of fields. HloProto: hlo_module. HloModuleProto: name 1, computations, entry_computation_id, stack_frame_index.
_MODULE, _COMPUTATIONS, _ENTRY, _FRAMES = 1, 3, 6, 17
# HloComputationProto: instructions, id.
_INSTRUCTIONS, _COMPUTATION_ID, _ROOT = 2, 5, 6
# HloInstructionProto.
_NAME, _OPCODE, _SHAPE, _METADATA, _PARAMETER, _TARGET, _ID, _OPERANDS, _CALLED = 1, 2, 3, 7, 9, 28, 35, 36, 38
_GROUPS, _PRECISION, _DEVICES = 49, 51, 87
# OpMetadata: op_name, source_file, source_line, stack_frame_id.
_OP_NAME, _FILE, _LINE, _FRAME = 2, 3, 4, 15
# ShapeProto: element_type, dimensions, tuple_shapes.
_ELEMENT, _DIMENSIONS, _TUPLE = 2, 3, 4

ELEMENTS = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64", 10: "float16", 11: "float32",
    12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128", 19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4",
    23: "float8_e4m3b11fnuz", 24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz",
}  # fmt: skip
"""Names of `PrimitiveType`, as JAX spells them."""

_PRODUCTS = ("dot", "convolution", "ragged-dot")
_PRODUCT_CALL = re.compile(r"gemm|matmul|\$conv|attention|fmha", re.IGNORECASE)
_COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast|send|recv)(-start)?$")
_HIGH = (1, 2)
"""PrecisionConfig: HIGH and HIGHEST keep products of float32 out of TF32."""

_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python\d|^<")


class Shape(NamedTuple):
    """An array's type and sizes."""

    element: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.element}[{','.join(map(str, self.sizes))}]"


class Instruction(NamedTuple):
    """name, module: as XLA has them. scope: names of the functions and `jax.named_scope`s around it, outermost first, joined by "/".
    operands, results: the arrays that it takes and makes. file, line: of the program, "" and 0 where unknown. precision: of its
    matrix products, "" where it has none. collective: its kind, "" for none. ranks: that take part in it, 0 where unknown."""

    name: str
    module: str
    opcode: str
    scope: str
    backward: bool
    file: str
    line: int
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    precision: str
    collective: str
    ranks: int


class Programs:
    """The programs of a profile, by name and number, and those of their instructions that were asked for, in order."""

    def __init__(self) -> None:
        self._raw: dict[str, memoryview] = {}
        self._programs: dict[str, Program] = {}
        self._rows: dict[tuple[int, Instruction], int] = {}
        self.found: list[Instruction] = []
        self._numbers: list[int] = []

    def add(self, programs: dict[str, memoryview]) -> None:
        """Programs as they stand in a profile: `jit_step(12)` and its serialised HloProto."""
        self._raw |= programs

    def row(self, module: str, number: int, op: str, path: str, kernel: str) -> int:
        """The row in `table` of what a kernel runs. module, op: as the device's event names them; path: the op's name there."""
        program = self.program(module, number)
        instruction = (program.instruction(op) or program.instruction_of(kernel)) if program else None
        if instruction is None:
            if not path:
                return -1
            scope, backward = scopes_of(path)
            instruction = Instruction(op, module, "", scope, backward, "", 0, (), (), "", "", 0)
        row = self._rows.setdefault((number, instruction), len(self.found))
        if row == len(self.found):
            self.found.append(instruction)
            self._numbers.append(number)
        return row

    def program(self, module: str, number: int) -> Program | None:
        """A program by its name and number, None where the profile does not hold it."""
        name = f"{module}({number})"
        if name not in self._raw:
            return None
        if name not in self._programs:
            self._programs[name] = Program(self._raw[name], module)
        return self._programs[name]

    def table(self) -> pd.DataFrame:
        """`compiled_ops`: a row for each instruction that was asked for."""
        columns: dict[str, Any] = {
            "name": [i.name for i in self.found], "module": [i.module for i in self.found], "program": self._numbers, "opcode": [i.opcode for i in self.found],
            "scope": [i.scope for i in self.found], "backward": [int(i.backward) for i in self.found],
            "file": [i.file for i in self.found], "line": [i.line for i in self.found],
            "operands": [" ".join(map(str, i.operands)) for i in self.found], "results": [" ".join(map(str, i.results)) for i in self.found],
            "precision": [i.precision for i in self.found],
        }  # fmt: skip
        return table("compiled_ops", columns)

    def compiled_again(self) -> pd.DataFrame:
        """`programs`: of those that ran, those whose name several have."""
        ran = {(instruction.module, number) for instruction, number in zip(self.found, self._numbers, strict=True)}
        names = Counter(module for module, _ in ran)
        rows = []
        for module, number in sorted(ran):
            program = self.program(module, number) if names[module] > 1 else None
            if program and program.entry:
                rows.append((module, number, "; ".join(f"{name}: {array}" for name, array in program.entry.parameters())))
        modules, numbers, parameters = ([row[i] for row in rows] for i in range(3))
        return table("programs", {"module": modules, "program": numbers, "parameters": parameters})


class Program:
    """One compiled program. Raises ValueError where what is asked for is damaged."""

    def __init__(self, proto: memoryview, name: str) -> None:
        self.name = name
        self._module = next((message(v) for n, v in fields(proto) if n == _MODULE), memoryview(b""))
        self._decoded: dict[str, Instruction] = {}

    @cached_property
    def _parts(self) -> dict[int, list[Value]]:
        return _by_number(self._module)

    @cached_property
    def _computations(self) -> dict[int, Computation]:
        made = [Computation(message(part)) for part in self._parts.get(_COMPUTATIONS, [])]
        return {computation.id: computation for computation in made}

    @cached_property
    def _places(self) -> dict[str, tuple[Computation, int]]:
        return {name: (c, i) for c in self._computations.values() for i, name in enumerate(c.names)}

    @cached_property
    def _by_kernel(self) -> dict[str, str]:
        """Instructions by the name that their kernel has: no dots, no dashes."""
        return {name.replace(".", "_").replace("-", "_"): name for name in self._places}

    @cached_property
    def entry(self) -> Computation | None:
        """The computation that the program begins with."""
        return self._computations.get(whole(self._parts.get(_ENTRY, [0])[0]))

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self._parts.get(_FRAMES, []))

    def instruction_of(self, kernel: str) -> Instruction | None:
        """The instruction that a kernel is named after, None where there is none."""
        return self.instruction(self._by_kernel.get(kernel.removesuffix(".kd"), ""))

    def instruction(self, name: str) -> Instruction | None:
        """An instruction by its name; None where there is none, and for a command buffer, which holds many."""
        place = self._places.get(name)
        if place is None or name.startswith("command_buffer"):
            return None
        if name not in self._decoded:
            self._decoded[name] = self._decode(*place)
        return self._decoded[name]

    def _decode(self, computation: Computation, at: int) -> Instruction:
        parts = computation.parts(at)
        called = [c for number in _numbers(parts.get(_CALLED, [])) if (c := self._computations.get(number))]
        opcode = _text(parts, _OPCODE)
        path, file, line = self._origin(parts, called)
        scope, backward = scopes_of(path)
        collective, devices = self._collective(opcode, parts, called)
        return Instruction(
            _text(parts, _NAME), self.name, opcode, scope, backward, file, line, computation.operands(parts), tuple(_shapes(parts.get(_SHAPE, []))),
            self._precision(computation, opcode, parts, called), collective, _ranks(devices),
        )  # fmt: skip

    def _origin(self, parts: dict[int, list[Value]], called: list[Computation]) -> tuple[str, str, int]:
        """Name, file and line where an instruction comes from: its own, else of what it computes last, else of anything in it."""
        inner = [c.parts(i) for c in called for i in (c.root, *range(len(c.names)))]
        path, file, line = "", "", 0
        for candidate in (parts, *inner):
            metadata = _by_number(message(candidate[_METADATA][0])) if _METADATA in candidate else {}
            path = path or _text(metadata, _OP_NAME)
            if not file:
                file, line = self._frames.user(whole(metadata.get(_FRAME, [0])[0]))
            if not file and not _LIBRARY.search(own := _text(metadata, _FILE)):
                file, line = own, whole(metadata.get(_LINE, [0])[0])
            if path and file:
                break
        return path, file, min(line, 1 << 30)

    def _precision(self, computation: Computation, opcode: str, parts: dict[int, list[Value]], called: list[Computation]) -> str:
        """The numbers that the first matrix product in it multiplies; "" where there is none."""
        products = [(computation, parts)] if opcode in _PRODUCTS or (opcode == "custom-call" and _PRODUCT_CALL.search(_text(parts, _TARGET))) else []
        products += [(c, p) for c in called for i in range(len(c.names)) if _text(p := c.parts(i), _OPCODE) in _PRODUCTS]
        for home, product in products:
            operands = home.operands(product)
            element = operands[0].element if operands else ""
            if element != "float32":
                return _PRECISIONS.get(element, "fp8" if element.startswith("float8") else "")
            asked = {n for config in product.get(_PRECISION, []) for n in _numbers(_by_number(message(config)).get(1, []))}
            return "fp32" if asked & set(_HIGH) else "tf32"
        return ""

    def _collective(self, opcode: str, parts: dict[int, list[Value]], called: list[Computation]) -> tuple[str, dict[int, list[Value]]]:
        """Its kind, and the fields that say who takes part; of an asynchronous one those of what it wraps."""
        if match := _COLLECTIVE.fullmatch(opcode):
            return match[1], parts
        if opcode in ("async-start", "fusion", "call"):
            for computation in called:
                for i in range(len(computation.names)):
                    inner = computation.parts(i)
                    if match := _COLLECTIVE.fullmatch(_text(inner, _OPCODE)):
                        return match[1], inner
        return "", {}


_PRECISIONS = {"float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}


class Computation:
    """Instructions in order, of which only the names are decoded at first."""

    def __init__(self, data: memoryview) -> None:
        self.id, root = 0, -1
        self._raw: list[memoryview] = []
        self.names: list[str] = []
        for number, value in fields(data):
            if number == _INSTRUCTIONS:
                self._raw.append(message(value))
                self.names.append(next((text(v) for n, v in fields(message(value)) if n == _NAME), ""))
            elif number == _COMPUTATION_ID:
                self.id = whole(value)
            elif number == _ROOT:
                root = whole(value)
        self._root = root
        self._decoded: dict[int, dict[int, list[Value]]] = {}

    def parts(self, at: int) -> dict[int, list[Value]]:
        """Fields of the instruction at a place."""
        if at not in self._decoded:
            self._decoded[at] = _by_number(self._raw[at])
        return self._decoded[at]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {whole(self.parts(i).get(_ID, [0])[0]): i for i in range(len(self._raw))}

    @property
    def root(self) -> int:
        """The place of what the computation gives back."""
        return self._places.get(self._root, len(self._raw) - 1)

    def operands(self, parts: dict[int, list[Value]]) -> tuple[Shape, ...]:
        """Arrays that an instruction of this computation takes."""
        places = [place for number in _numbers(parts.get(_OPERANDS, [])) if (place := self._places.get(number)) is not None]
        return tuple(shape for place in places for shape in _shapes(self.parts(place).get(_SHAPE, [])))

    def parameters(self) -> list[tuple[str, Shape]]:
        """Name and array of each parameter, in order."""
        found = []
        for i in range(len(self._raw)):
            parts = self.parts(i)
            if _text(parts, _OPCODE) == "parameter" and (shapes := list(_shapes(parts.get(_SHAPE, [])))):
                metadata = _by_number(message(parts[_METADATA][0])) if _METADATA in parts else {}
                found.append((whole(parts.get(_PARAMETER, [0])[0]), _text(metadata, _OP_NAME) or self.names[i], shapes[0]))
        return [(name, shape) for _, name, shape in sorted(found, key=lambda p: p[0])]


class Frames:
    """`StackFrameIndexProto`: file names 1, function names 2, file locations 3 {file 1, function 2, line 3}, frames 4 {location 1, parent 2};
    all are counted from 1."""

    def __init__(self, raw: list[Value]) -> None:
        parts = _by_number(message(raw[0])) if raw else {}
        self._files = [text(v) for v in parts.get(1, [])]
        self._locations = [_whole_fields(v) for v in parts.get(3, [])]
        self._frames = [_whole_fields(v) for v in parts.get(4, [])]

    def user(self, frame: int) -> tuple[str, int]:
        """File and line of the innermost frame around that is no library's; "" and 0 where there is none."""
        for _ in range(len(self._frames)):
            if not 0 < frame <= len(self._frames):
                break
            location = self._frames[frame - 1].get(1, 0)
            if 0 < location <= len(self._locations):
                said = self._locations[location - 1]
                file = self._files[said.get(1, 0) - 1] if 0 < said.get(1, 0) <= len(self._files) else ""
                if file and not _LIBRARY.search(file):
                    return file, said.get(3, 0)
            frame = self._frames[frame - 1].get(2, 0)
        return "", 0


def _by_number(data: memoryview) -> dict[int, list[Value]]:
    found: dict[int, list[Value]] = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def _whole_fields(value: Value) -> dict[int, int]:
    return {number: part for number, part in fields(message(value)) if isinstance(part, int)}


def _text(parts: dict[int, list[Value]], number: int) -> str:
    return text(parts[number][0]) if number in parts else ""


def _numbers(values: list[Value]) -> list[int]:
    """A repeated number, packed or not."""
    return [n for value in values for n in ([value] if isinstance(value, int) else _packed(value))]


def _packed(data: memoryview) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


def _shapes(values: list[Value]) -> Iterator[Shape]:
    """Arrays of a shape, those of a tuple one by one."""
    for value in values:
        parts = _by_number(message(value))
        if _TUPLE in parts:
            yield from _shapes(parts[_TUPLE][:64])
        elif (element := ELEMENTS.get(whole(parts.get(_ELEMENT, [0])[0]))) is not None:
            yield Shape(element, tuple(_numbers(parts.get(_DIMENSIONS, []))))


def _ranks(parts: dict[int, list[Value]]) -> int:
    """How many devices each group of a collective has, 0 where it does not say."""
    groups = [*parts.get(_GROUPS, [])]
    for devices in parts.get(_DEVICES, []):
        said = _by_number(message(devices))
        groups += said.get(1, [])
        for iota in said.get(2, []):
            return _whole_fields(iota).get(2, 0)
    return max((len(_numbers(_by_number(message(group)).get(1, []))) for group in groups), default=0)
