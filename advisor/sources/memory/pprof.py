"""JAX's memory profile (`jax.profiler.save_device_memory_profile`): the memory held now, by origin; pprof's protobuf.

Fields: https://github.com/google/pprof/blob/main/proto/profile.proto"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from advisor.errors import TraceError
from advisor.recordings.snapshot import Block, DeviceSnapshot, Events, Frame, MemorySnapshot, Segment, Stack
from advisor.sources.protobuf import Value, fields, message, text, whole

RECORD = "Write it again: jax.profiler.save_device_memory_profile('memory.prof')."


_DEVICE = re.compile(r"(?P<kind>[A-Za-z]+)[:_](?P<number>\d{1,9})")
"""`cuda:0`, `cpu:0`, `TPU_0(process=0,(0,0,0,0))`."""


def read(data: bytes, path: str) -> MemorySnapshot:
    """Read a profile. Raises TraceError if it is damaged or holds no bytes of a device."""
    try:
        return _snapshot(data, path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise TraceError(f"{path} is a damaged memory profile: {str(error)[:120]}", RECORD) from None


def _snapshot(data: bytes, path: str) -> MemorySnapshot:
    parts: dict[int, list[Value]] = defaultdict(list)
    for number, value in fields(memoryview(data)):
        parts[number].append(value)
    texts = [text(value) for value in parts[6]]
    functions = {whole(f[1][0]): f for f in map(_message, parts[5])}
    locations = {whole(f[1][0]): _frames(f, functions, texts) for f in map(_message, parts[4])}
    stacks: dict[Stack, int] = {}
    blocks: dict[int, list[Block]] = defaultdict(list)
    held: dict[int, int] = defaultdict(int)
    for sample in map(_message, parts[2]):
        labels = {texts[whole(label[1][0])]: texts[whole(label[2][0])] for label in map(_message, sample[3]) if 2 in label}
        size = _numbers(sample[2])[1]
        where = _DEVICE.match(labels.get("device", ""))
        if size > 0 and where and where["kind"].lower() != "cpu":
            stack = tuple(frame for place in _numbers(sample[1]) for frame in locations[place])
            device = int(where["number"])
            blocks[device].append(Block(held[device], size, size, True, True, stacks.setdefault(stack, len(stacks))))
            held[device] += size
    if not blocks:
        raise TraceError(f"{path} is a memory profile that holds no buffers of a GPU: the program held nothing, or ran on the CPU", RECORD)
    return MemorySnapshot(
        path=path,
        format="jax-memory",
        bytes=len(data),
        devices=tuple(_device(device, held) for device, held in sorted(blocks.items())),
        stacks=tuple(stacks),
        tells_reserved=False,
    )


def _device(device: int, blocks: list[Block]) -> DeviceSnapshot:
    """The held memory, as a single segment: the profile has no addresses."""
    total = sum(block.size for block in blocks)
    none = np.empty(0, "i8")
    segment = Segment(0, total, 0, True, (0, 0), False, tuple(blocks))
    return DeviceSnapshot(device, (segment,), Events(np.empty(0, "i1"), none, none, none, none, np.empty(0, "i4")))


def _message(value: Value) -> dict[int, list[Value]]:
    parts: dict[int, list[Value]] = defaultdict(list)
    for number, part in fields(message(value)):
        parts[number].append(part)
    return parts


def _numbers(values: list[Value]) -> list[int]:
    """A repeated number, packed or not."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        for end in range(len(value)):
            if value[end] < 128:
                found.append(sum((byte & 127) << (7 * i) for i, byte in enumerate(value[at : end + 1])))
                at = end + 1
    return found


def _frames(location: dict[int, list[Value]], functions: dict[int, dict[int, list[Value]]], texts: list[str]) -> list[Frame]:
    """Frames of a location, innermost first: several if calls were inlined."""
    frames = []
    for line in map(_message, location[4]):
        function = functions[whole(line[1][0])]
        name, file = (texts[whole(function[number][0])] if function[number] else "" for number in (2, 4))
        frames.append(Frame(name, file, whole(line[2][0]) if line[2] else 0))
    return frames
