"""A self-consistent profile of JAX of any size: nested Python frames, jitted calls, launches with correlations, kernels with details."""

from __future__ import annotations

from pathlib import Path

FRAMES = 40
"""Python frames around each launch, two levels deep: nearly all that a profile with the Python tracer holds."""

LAUNCHES = 20
"""Launches a step."""

_NAMES = 400
_TITLES = [f"$model.py:{i} layer{i}" for i in range(1, _NAMES)] + ["PjitFunction(step)", "train", "loop_fusion", "gemm_fusion_dot"]
_FUNCTION, _STEP, _FUSION, _DOT = (_NAMES + i for i in range(4))
_STATS = [
    "correlation_id", "kernel_details", "context_id", "occupancy_min_grid_size", "hlo_op", "hlo_module", "program_id", "step_num",
    "regs:46 static_shared:0 dynamic_shared:12288 grid:128,1,1 block:128,1,1 occ_pct:62.5", "loop_fusion", "jit_step", "$$1",
]  # fmt: skip


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | bytes | str) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def _event(name: int, at_ps: int, dur_ps: int, stats: bytes = b"") -> bytes:
    return field(4, field(1, name) + field(2, at_ps) + field(3, dur_ps) + stats)


def _stat(name: str, value: int, reference: bool = False) -> bytes:
    return field(4, field(1, _STATS.index(name) + 1) + field(7 if reference else 3, value))


def _plane(name: str, lines: bytes) -> bytes:
    body = field(1, 1) + field(2, name) + lines
    body += b"".join(field(4, field(1, i) + field(2, field(1, i) + field(2, title))) for i, title in enumerate(_TITLES, 1))
    body += b"".join(field(5, field(1, i) + field(2, field(1, i) + field(2, stat))) for i, stat in enumerate(_STATS, 1))
    return field(1, body)


def generate(path: Path, events: int) -> int:
    """Write a profile of at least that many events, in whole steps. Returns how many there are."""
    host, device = bytearray(field(1, 7) + field(2, "python") + field(3, 1000)), bytearray(field(1, 14) + field(2, "Stream #14(Compute)") + field(3, 1000))
    fixed = b"".join(
        _stat(name, _STATS.index(value) + 1, reference=True)
        for name, value in (("kernel_details", _STATS[8]), ("context_id", "$$1"), ("hlo_op", "loop_fusion"), ("hlo_module", "jit_step"))
    ) + _stat("program_id", 12) + _stat("occupancy_min_grid_size", 264)  # fmt: skip
    clock = made = correlation = step = 0
    while made < events or step < 6:
        began, body = clock, bytearray()
        for launch in range(LAUNCHES):
            correlation += 1
            linked = _stat("correlation_id", correlation)
            name = _DOT if launch % 4 == 0 else _FUSION
            for i in range(FRAMES // 2):
                body += _event(1 + (launch * FRAMES + i) % (_NAMES - 1), clock, 900_000)
                body += _event(1 + (launch * FRAMES + i + 1) % (_NAMES - 1), clock + 100_000, 500_000)
                clock += 1_000_000
            body += _event(_FUNCTION, clock, 8_000_000)
            body += _event(name, clock + 2_000_000, 3_000_000, linked)
            device += _event(name, clock + 7_000_000, 20_000_000, linked + fixed)
            clock += 30_000_000
            made += FRAMES + 3
        host += _event(_STEP, began, clock - began, _stat("step_num", step)) + body
        made, step, clock = made + 1, step + 1, clock + 5_000_000
    with path.open("wb") as file:
        file.write(_plane("/device:GPU:0", field(3, bytes(device))) + _plane("/host:CPU", field(3, bytes(host))))
    return made
