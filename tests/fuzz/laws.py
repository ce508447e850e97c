"""What holds of every answer, whatever the input: checked by the fuzzing and by the tests of damaged traces."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from advisor.errors import AdvisorError
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import TABLES, Timeline
from advisor.report.model import Report

LONGEST_MESSAGE = 4000

RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What drives terminals, turns the order of letters round or is not seen."""


def error_is_clear(error: AdvisorError) -> None:
    """It says what happened and what to do, in bounded length; and it blames the file, not the reader."""
    assert error.message and error.hint, f"no hint: {error.message!r}"
    assert len(error.message) < LONGEST_MESSAGE, len(error.message)
    assert not error.message.startswith("the reader "), error.message


def recording_is_sound(recording: Recording) -> None:
    """Tables hold text and finite times."""
    for part in recording.parts:
        if isinstance(part, Timeline):
            _timeline_is_sound(part)


def _timeline_is_sound(timeline: Timeline) -> None:
    assert isinstance(timeline.base_ns, int)
    for device in timeline.devices:
        numbers = (device.id, device.sm_count, device.memory_bytes, device.warp_size, *device.compute_capability)
        assert isinstance(device.name, str) and all(isinstance(number, int) for number in numbers), device
    for name, spec in TABLES.items():
        frame = getattr(timeline, name)
        for column in spec:
            if column in ("start_us", "dur_us"):
                values = frame[column]
                assert np.isfinite(values).all(), f"{name}.{column}"
                assert column == "start_us" or (values >= 0).all(), f"{name}.{column}"


def nothing_is_raw(shown: str) -> None:
    """No character of a name that a terminal or a reader would obey stands in what is shown as it is."""
    found = RAW.search(shown)
    assert found is None, ascii(shown[max(found.start() - 60, 0) : found.end() + 40])


def report_is_sound(report: Report) -> None:
    """No rule failed; parts sum to wholes; savings fit into the step; no number is none; nothing contradicts itself."""
    assert not report.failed, report.failed
    for time in report.time or ():
        classes = time.compute_us + time.exposed_comm_us + time.exposed_copy_us + time.exposed_memset_us + time.idle_us
        assert math.isclose(classes, time.window_us, rel_tol=1e-6, abs_tol=1e-6), (classes, time.window_us)
        causes = [getattr(time.idle, name) for name in time.idle.__struct_fields__]
        assert math.isclose(sum(causes), time.idle_us, rel_tol=1e-6, abs_tol=1e-6) and min(causes) >= 0, (causes, time.idle_us)
    for finding in report.findings:
        saving = finding.saving
        low, expected, high = saving.low, saving.expected, saving.high
        assert 0 <= low <= expected <= high, saving
    head = report.headline
    if head.predicted_step_us is not None and head.step_us is not None:
        low, expected, high = head.predicted_step_us.low, head.predicted_step_us.expected, head.predicted_step_us.high
        assert 0 <= low <= expected <= high <= head.step_us * (1 + 1e-9), head
    for place, number in _numbers(msgspec.to_builtins(report), ""):
        assert math.isfinite(number), place


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _numbers(item, f"{place}[{i}]")
