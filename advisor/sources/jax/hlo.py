"""XLA's HLO as it is in a profile: computations of instructions, each with its fields by number, decoded when they are asked for.

`HloModuleProto` of https://github.com/openxla/xla/blob/main/xla/service/hlo.proto
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from advisor.intervals import innermost, outermost, over_ancestors
from advisor.knowledge.library_files import IN_LIBRARY
from advisor.recordings.links import Forest, forest
from advisor.sources.protobuf import Value, fields, message, numbers_of, text, whole

T = TypeVar("T")
Parts = dict[int, list[Value]]
"""The fields of a message, by number."""

FIELD, SAID = numbers_of("HloInstructionProto"), numbers_of("OpMetadata")
COMPUTATION, SHAPE = numbers_of("HloComputationProto"), numbers_of("ShapeProto")
STACK, _LOCATION, _FRAME = numbers_of("StackFrameIndexProto"), numbers_of("FileLocation"), numbers_of("StackFrame")

_MOST_ARRAYS, _DEEPEST_TUPLE = 64, 16
"""Greatest number of arrays and depth of tuples that are read of a shape: a program's results are a tuple of arrays."""

ELEMENTS = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64", 10: "float16", 11: "float32",
    12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128", 19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4",
    23: "float8_e4m3b11fnuz", 24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz",
}  # fmt: skip
"""Names of `PrimitiveType`, as JAX spells them."""
_BITS = {name: int(found[0]) if (found := re.search(r"\d+", name)) else 8 for name in ELEMENTS.values()}

LIBRARY = re.compile(IN_LIBRARY)
"""Files that are not the program's own."""


class Shape(NamedTuple):
    """An array's type and sizes."""

    element: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.element}[{','.join(map(str, self.sizes))}]"

    @property
    def elements(self) -> float:
        """How many it has."""
        return math.prod(map(float, self.sizes))

    @property
    def bytes(self) -> float:
        """Its bytes in memory."""
        return self.elements * _BITS[self.element] / 8


class Computation:
    """Instructions in order. At first, only their names are decoded."""

    def __init__(self, data: memoryview) -> None:
        self.id, root = 0, -1
        self._raw: list[memoryview] = []
        self.names: list[str] = []
        for number, value in fields(data):
            if number == COMPUTATION.instructions:
                self._raw.append(message(value))
                self.names.append(next((text(v) for n, v in fields(message(value)) if n == FIELD.name), ""))
            elif number == COMPUTATION.id:
                self.id = whole(value)
            elif number == COMPUTATION.root_id:
                root = whole(value)
        self._root = root
        self._decoded: dict[int, Parts] = {}
        self._results: dict[int, tuple[Shape, ...]] = {}
        self._answers: dict[Callable[[Computation], Any], Any] = {}

    def cached_answer(self, question: Callable[[Computation], T]) -> T:
        """The result of a function on the computation, computed once: thousands of instructions may call it."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return self._answers[question]

    def parts(self, at: int) -> Parts:
        """Fields of the instruction at a place."""
        if at not in self._decoded:
            self._decoded[at] = by_number(self._raw[at])
        return self._decoded[at]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {whole(self.parts(i).get(FIELD.id, [0])[0]): i for i in range(len(self._raw))}

    @property
    def root(self) -> int:
        """The position of the computation's result."""
        return self._places.get(self._root, len(self._raw) - 1)

    def taken(self, parts: Parts) -> list[int]:
        """Positions of the instructions that are operands of an instruction of this computation."""
        return [place for number in numbers(parts.get(FIELD.operand_ids, [])) if (place := self._places.get(number)) is not None]

    def results(self, at: int) -> tuple[Shape, ...]:
        """Arrays that the instruction at a place makes."""
        if at not in self._results:
            self._results[at] = tuple(shapes_of(self.parts(at).get(FIELD.shape, [])))
        return self._results[at]

    @cached_property
    def _viewed(self) -> Forest:
        """For each bitcast the position of its operand, -1 for other instructions."""
        taken = [next(iter(self.taken(parts)), -1) if text_of(parts := self.parts(at), FIELD.opcode) == "bitcast" else -1 for at in range(len(self._raw))]
        return forest(np.array(taken, np.int64))

    @cached_property
    def origins(self) -> list[int]:
        """For each instruction the position of its array's producer, through bitcasts: for most, its own."""
        to = self._viewed.to
        return over_ancestors(to, np.arange(len(to)), -1, outermost).tolist()

    @property
    def cut(self) -> int:
        """Number of ignored links from bitcasts to their operands, as far as they were requested."""
        return self._viewed.cut if "_viewed" in self.__dict__ else 0

    def operands(self, parts: Parts) -> tuple[Shape, ...]:
        """Arrays that an instruction of this computation takes."""
        return tuple(shape for place in self.taken(parts) for shape in self.results(place))

    def parameters(self) -> list[tuple[str, Shape]]:
        """Name and array of each parameter, in order."""
        found = []
        for i in range(len(self._raw)):
            parts = self.parts(i)
            if text_of(parts, FIELD.opcode) == "parameter" and (shapes := list(shapes_of(parts.get(FIELD.shape, [])))):
                metadata = by_number(message(parts[FIELD.metadata][0])) if FIELD.metadata in parts else {}
                found.append((whole(parts.get(FIELD.parameter_number, [0])[0]), text_of(metadata, SAID.op_name) or self.names[i], shapes[0]))
        return [(name, shape) for _, name, shape in sorted(found, key=lambda p: p[0])]


class Frames:
    """`StackFrameIndexProto`: numbers in it count from 1."""

    def __init__(self, raw: list[Value]) -> None:
        parts = by_number(message(raw[0])) if raw else {}
        self._files = [text(v) for v in parts.get(STACK.file_names, [])]
        self._locations = [whole_fields(v) for v in parts.get(STACK.file_locations, [])]
        self._frames = [whole_fields(v) for v in parts.get(STACK.stack_frames, [])]
        self._callers = forest(np.array([min(frame.get(_FRAME.parent_frame_id, 0), len(self._frames) + 1) - 1 for frame in self._frames], np.int64))
        self.cut = self._callers.cut
        """How many links from a frame to its caller were left out."""

    def user(self, frame: int) -> tuple[str, int]:
        """File and line of the innermost frame around that is no library's; "" and 0 if there is none."""
        at = self._users[frame - 1] if 0 < frame <= len(self._frames) else -1
        return self._line(at) if at >= 0 else ("", 0)

    @cached_property
    def _users(self) -> list[int]:
        """For each frame the place of the innermost around, itself among them, that is no library's; -1 if there is none."""
        own = [at if (file := self._line(at)[0]) and not LIBRARY.search(file) else -1 for at in range(len(self._frames))]
        return over_ancestors(self._callers.to, np.array(own, np.int64), -1, innermost).tolist()

    def _line(self, at: int) -> tuple[str, int]:
        """File and line of the frame at a place, "" and 0 if it does not say."""
        location = self._frames[at].get(_FRAME.file_location_id, 0)
        said = self._locations[location - 1] if 0 < location <= len(self._locations) else {}
        name = said.get(_LOCATION.file_name_id, 0)
        return self._files[name - 1] if 0 < name <= len(self._files) else "", said.get(_LOCATION.line, 0)


def by_number(data: memoryview) -> Parts:
    found: Parts = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def whole_fields(value: Value) -> dict[int, int]:
    return {number: part for number, part in fields(message(value)) if isinstance(part, int)}


def text_of(parts: Parts, number: int) -> str:
    return text(parts[number][0]) if number in parts else ""


def numbers(values: list[Value]) -> list[int]:
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


def shapes_of(values: list[Value]) -> Iterator[Shape]:
    """Arrays of a shape, those of a tuple separately, up to the greatest number."""
    return islice(_arrays(values, 0), _MOST_ARRAYS)


def _arrays(values: list[Value], depth: int) -> Iterator[Shape]:
    for value in values[:_MOST_ARRAYS]:
        parts = by_number(message(value))
        if SHAPE.tuple_shapes in parts:
            yield from _arrays(parts[SHAPE.tuple_shapes], depth + 1) if depth < _DEEPEST_TUPLE else ()
        elif (element := ELEMENTS.get(whole(parts.get(SHAPE.element_type, [0])[0]))) is not None:
            yield Shape(element, tuple(numbers(parts.get(SHAPE.dimensions, []))))
