"""What XLA compiled, as far as the device ran it: each HLO instruction with the lines and scopes of the program that it comes from.

`HloProto` of https://github.com/openxla/xla/blob/main/xla/service/hlo.proto; only instructions that are asked for are decoded whole.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cached_property
from typing import Any, NamedTuple

from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.columns import Table
from advisor.recordings.timeline import table
from advisor.sources.jax import hlo
from advisor.sources.jax.attention import is_attention
from advisor.sources.jax.families import family_of
from advisor.sources.jax.hlo import FIELD, SAID, Computation, Frames, Parts, Shape, by_number, numbers, shapes_of, text_of, whole_fields
from advisor.sources.jax.scopes import scopes_of
from advisor.sources.jax.work import work_of
from advisor.sources.protobuf import fields, message, numbers_of, whole

PROTO, MODULE, PRECISION = numbers_of("HloProto"), numbers_of("HloModuleProto"), numbers_of("PrecisionConfig")
GROUP, DEVICES, IOTA = numbers_of("ReplicaGroup"), numbers_of("CollectiveDeviceListProto"), numbers_of("IotaReplicaGroupListProto")

COMMAND_BUFFER = "command_buffer"
"""How instructions begin that are a CUDA graph of many."""

_PRODUCTS = ("dot", "convolution", "ragged-dot")
_PRODUCT_CALL = re.compile(r"gemm|matmul|\$conv|attention|fmha", re.IGNORECASE)
_SETTINGS = re.compile(r'"(?:\w+_contracting_dimensions|\w+_batch_dimensions|epilogue|selected_algorithm|algo_id|mask_type)":[^,{}]*')
_COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast|send|recv)(-start)?$")
_HIGH = {*vars(numbers_of("Precision")).values()}
"""HIGH and HIGHEST keep products of float32 out of TF32."""


class Instruction(NamedTuple):
    """name, module: as in XLA. scope: names of the functions and `jax.named_scope`s around it, outermost first, joined by "/".

    operands, results: its arrays. file, line: of the program, "" and 0 if unknown. precision: of its GEMMs, "" if it has none.

    collective: its kind, "" for none. ranks: number of participants, 0 if unknown.

    flops, bytes: its least work, NaN if unknown. family: its kernel's purpose, "" if the kernel's name shows it."""

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
    flops: float = math.nan
    bytes: float = math.nan
    family: str = ""


class Programs:
    """The programs of a profile, by name and number, and those of their instructions that were asked for, in order."""

    def __init__(self) -> None:
        self._raw: dict[str, memoryview] = {}
        self._programs: dict[str, Program] = {}
        self._rows: dict[tuple[int, Instruction], int] = {}
        self.found: list[Instruction] = []
        self._numbers: list[int] = []

    def add(self, programs: dict[str, memoryview]) -> None:
        """Programs as they are in a profile: `jit_step(12)` and its serialised HloProto."""
        self._raw |= programs

    def row(self, module: str, number: int, op: str, path: str, kernel: str) -> int:
        """The row in `table` of a kernel's instruction. module, op: as the device's event names them. path: the op's name there."""
        program = self.program(module, number)
        instruction = (program.instruction(op) or program.instruction_of(kernel)) if program else None
        if instruction is None:
            if not path:
                return -1
            scope, backward = scopes_of(path)
            instruction = Instruction(op, module, "", scope, backward, "", 0, (), (), "", "", 0)
        return self._row_of(number, instruction)

    def row_alike(self, module: str, number: int, op: str) -> int:
        """The row of a kernel that does the same as an instruction of that name, anywhere in the program."""
        program = self.program(module, number)
        instruction = program.instruction(op) if program else None
        return self._row_of(number, instruction._replace(name="", scope="", file="", line=0)) if instruction else -1

    def _row_of(self, number: int, instruction: Instruction) -> int:
        row = self._rows.setdefault((number, instruction), len(self.found))
        if row == len(self.found):
            self.found.append(instruction)
            self._numbers.append(number)
        return row

    def program(self, module: str, number: int) -> Program | None:
        """A program by its name and number, None if the profile does not hold it."""
        name = f"{module}({number})"
        if name not in self._raw:
            return None
        if name not in self._programs:
            self._programs[name] = Program(self._raw[name], module)
        return self._programs[name]

    @property
    def cut(self) -> int:
        """Number of cyclic or too long links in the programs that were read: from frames to their callers, from bitcasts to their operands."""
        return sum(program.cut for program in self._programs.values())

    def table(self) -> Table:
        """`compiled_ops`: a row for each instruction that was asked for."""
        columns: dict[str, Any] = {
            "name": [i.name for i in self.found], "module": [i.module for i in self.found], "program": self._numbers, "opcode": [i.opcode for i in self.found],
            "scope": [i.scope for i in self.found], "backward": [int(i.backward) for i in self.found],
            "file": [i.file for i in self.found], "line": [i.line for i in self.found],
            "operands": [" ".join(map(str, i.operands)) for i in self.found], "results": [" ".join(map(str, i.results)) for i in self.found],
            "precision": [i.precision for i in self.found], "family": [i.family for i in self.found], "flops": [i.flops for i in self.found], "bytes": [i.bytes for i in self.found],
        }  # fmt: skip
        return table("compiled_ops", columns)

    def compiled_again(self) -> Table:
        """`programs`: among the programs that ran, those that share a name."""
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
    """A compiled program. Raises ValueError if requested data are damaged."""

    def __init__(self, proto: memoryview, name: str) -> None:
        self.name = name
        self._module = next((message(v) for n, v in fields(proto) if n == PROTO.hlo_module), memoryview(b""))
        self._decoded: dict[str, Instruction] = {}

    @cached_property
    def _parts(self) -> Parts:
        return by_number(self._module)

    @cached_property
    def _computations(self) -> dict[int, Computation]:
        made = [Computation(message(part)) for part in self._parts.get(MODULE.computations, [])]
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
        return self._computations.get(whole(self._parts.get(MODULE.entry_computation_id, [0])[0]))

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self._parts.get(MODULE.stack_frame_index, []))

    @property
    def cut(self) -> int:
        """How many links in it were left out."""
        return self._frames.cut + sum(computation.cut for computation in self._computations.values())

    @cached_property
    def libraries(self) -> list[str]:
        """Names of the instructions that a library computes, in order."""
        return [name for name, (home, at) in self._places.items() if _PRODUCT_CALL.search(text_of(home.parts(at), FIELD.custom_call_target))]

    def settings(self, name: str) -> tuple[object, ...]:
        """What decides which kernel a library takes for an instruction."""
        home, at = self._places[name]
        parts = home.parts(at)
        return (text_of(parts, FIELD.custom_call_target), home.operands(parts), home.results(at), *_SETTINGS.findall(text_of(parts, FIELD.backend_config)))

    def instruction_of(self, kernel: str) -> Instruction | None:
        """The instruction that a kernel is named after, None if there is none."""
        return self.instruction(self._by_kernel.get(kernel.removesuffix(".kd"), ""))

    def instruction(self, name: str) -> Instruction | None:
        """An instruction by its name; None if there is none, and for a command buffer, which holds many."""
        place = self._places.get(name)
        if place is None or name.startswith(COMMAND_BUFFER):
            return None
        if name not in self._decoded:
            self._decoded[name] = self._decode(*place)
        return self._decoded[name]

    def _decode(self, computation: Computation, at: int) -> Instruction:
        parts = computation.parts(at)
        called = [c for number in dict.fromkeys(numbers(parts.get(FIELD.called_computation_ids, []))) if (c := self._computations.get(number))]
        opcode = text_of(parts, FIELD.opcode)
        path, file, line = self._origin(parts, called)
        scope, backward = scopes_of(path)
        collective, devices = self._collective(opcode, parts, called)
        return Instruction(
            text_of(parts, FIELD.name), self.name, opcode, scope, backward, file, line, computation.operands(parts), tuple(shapes_of(parts.get(FIELD.shape, []))),
            self._precision(computation, opcode, parts, called), collective, _ranks(devices),
            *work_of(computation, at, called), _said(family_of(computation, at, called)),
        )  # fmt: skip

    def _origin(self, parts: Parts, called: list[Computation]) -> tuple[str, str, int]:
        """Name, file and line of an instruction's source: its own, else of its last computation, else of any instruction in it."""
        path, file, line = self._said(parts)
        for body in called:
            if path and file:
                break
            inner = body.cached_answer(self._origin_inside)
            path = path or inner[0]
            if not file:
                _, file, line = inner
        return path, file, min(line, 1 << 30)

    def _origin_inside(self, body: Computation) -> tuple[str, str, int]:
        """The first name, and the first file and line, of a computation's result and of all its other instructions."""
        path, file, line = "", "", 0
        for at in (body.root, *range(len(body.names))):
            own_path, own, own_line = self._said(body.parts(at))
            path = path or own_path
            if not file:
                file, line = own, own_line
            if path and file:
                break
        return path, file, line

    def _said(self, parts: Parts) -> tuple[str, str, int]:
        """Name, file and line of an instruction by its own metadata: of the innermost frame that is no library's, else as they are there."""
        metadata = by_number(message(parts[FIELD.metadata][0])) if FIELD.metadata in parts else {}
        file, line = self._frames.user(whole(metadata.get(SAID.stack_frame_id, [0])[0]))
        if not file and not hlo.LIBRARY.search(own := text_of(metadata, SAID.source_file)):
            file, line = own, whole(metadata.get(SAID.source_line, [0])[0])
        return text_of(metadata, SAID.op_name), file, line

    def _precision(self, computation: Computation, opcode: str, parts: Parts, called: list[Computation]) -> str:
        """The numbers that the first matrix product in it multiplies; "" if there is none."""
        products = [(computation, parts)] if opcode in _PRODUCTS or (opcode == "custom-call" and _multiplies(text_of(parts, FIELD.custom_call_target))) else []
        products += [(c, product) for c in called if (product := c.cached_answer(_first_product))]
        for home, product in products[:1]:
            operands = home.operands(product)
            element = operands[0].element if operands else ""
            if element != "float32":
                return _PRECISIONS.get(element, "fp8" if element.startswith("float8") else "")
            asked = {n for config in product.get(FIELD.precision_config, []) for n in numbers(by_number(message(config)).get(PRECISION.operand_precision, []))}
            return "fp32" if asked & _HIGH else "tf32"
        return ""

    def _collective(self, opcode: str, parts: Parts, called: list[Computation]) -> tuple[str, Parts]:
        """Its kind, and the fields that name its participants; for an asynchronous collective those of the wrapped instruction."""
        if match := _COLLECTIVE.fullmatch(opcode):
            return match[1], parts
        if opcode in ("async-start", "fusion", "call"):
            return next((found for computation in called if (found := computation.cached_answer(_first_collective))), ("", {}))
        return "", {}


def _first_product(body: Computation) -> Parts | None:
    return next((parts for i in range(len(body.names)) if text_of(parts := body.parts(i), FIELD.opcode) in _PRODUCTS), None)


def _first_collective(body: Computation) -> tuple[str, Parts] | None:
    for i in range(len(body.names)):
        if match := _COLLECTIVE.fullmatch(text_of(parts := body.parts(i), FIELD.opcode)):
            return match[1], parts
    return None


def _multiplies(target: str) -> bool:
    return bool(_PRODUCT_CALL.search(target)) or is_attention(target)


_PRECISIONS = {"float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}


def _said(family: Family | None) -> str:
    return family.value if family else ""


def _ranks(parts: Parts) -> int:
    """How many devices each group of a collective has, 0 if it does not say."""
    groups = [*parts.get(FIELD.replica_groups, [])]
    for devices in parts.get(FIELD.collective_device_list, []):
        said = by_number(message(devices))
        groups += said.get(DEVICES.replica_groups, [])
        for iota in said.get(DEVICES.iota_replica_group_list, []):
            return whole_fields(iota).get(IOTA.num_devices_per_group, 0)
    return max((len(numbers(by_number(message(group)).get(GROUP.replica_ids, []))) for group in groups), default=0)
