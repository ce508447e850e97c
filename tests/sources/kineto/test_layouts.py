"""The same events give the same tables, in whatever layout they stand and wherever the text is cut."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.recordings.timeline import Timeline
from advisor.sources import kineto
from advisor.sources.kineto.chunks import Text, find_events
from advisor.sources.kineto.events import parse
from advisor.sources.kineto.structure import brackets, objects
from advisor.sources.stream import Stream
from tests.paths import examples
from tests.sources.kineto import reference
from tests.sources.kineto.compare import assert_same
from tests.sources.kineto.layouts import EVENTS, LAYOUTS, METADATA, Events, x

CHUNKS = (1, 13, 64, 257, 1000, 1 << 20)


def read(text: str | bytes, chunk_bytes: int = 1 << 20) -> Timeline:
    data = text.encode() if isinstance(text, str) else text
    return kineto.read(Stream(io.BytesIO(data)), "test", chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_cuts(layout: str, chunk_bytes: int) -> None:
    text = LAYOUTS[layout](EVENTS * 3)
    timeline = read(text, chunk_bytes)
    # A list without its end is no JSON: its events are those of the list with it.
    tables, earliest = reference.read((LAYOUTS["bare"](EVENTS * 3) if layout == "bare_without_end" else text).encode())
    assert_same(timeline, tables, earliest + (0 if layout.startswith("bare") else METADATA["baseTimeNanoseconds"]))  # type: ignore[operator]
    assert timeline.source.issues == ()
    assert timeline.source.events == 3 * len(EVENTS)
    assert timeline.source.bytes == len(text.encode())


def test_metadata_before_and_after_the_events() -> None:
    for layout in ("kineto", "events_first"):
        timeline = read(LAYOUTS[layout](), 100)
        assert timeline.source.rank == 3 and timeline.source.world_size == 8
        assert timeline.source.metadata == {"schemaVersion": 1, "cuda_driver_version": 13000}
        (device,) = timeline.devices
        assert (device.name, device.sm_count, device.compute_capability) == ("NVIDIA H200", 132, (9, 0))
        assert (device.memory_bytes, device.warp_size) == (150109880320, 32)
        assert timeline.source.shapes and timeline.source.stacks and timeline.source.memory and timeline.source.syncs


_NASTY = st.text(st.sampled_from('},{"ph":[]\\ \n☃a') | st.characters(codec="utf-8"), max_size=12)
_EVENT = st.builds(
    lambda name, category, ts, extra: {**x(category, name, ts), "args": {"Input Dims": extra, name: extra}},
    _NASTY,
    st.sampled_from(["cpu_op", "kernel", "other"]),
    st.integers(0, 10**12).map(lambda ns: ns / 1000),
    st.recursive(st.integers(-9, 9) | _NASTY, lambda x: st.lists(x, max_size=3) | st.dictionaries(_NASTY, x, max_size=3)),
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(_EVENT, min_size=1, max_size=8),
    st.sampled_from(sorted(LAYOUTS)),
    st.integers(1, 300),
    st.dictionaries(_NASTY, _NASTY),
)
def test_any_names_in_any_layout(events: Events, layout: str, chunk_bytes: int, metadata: dict[str, Any]) -> None:
    metadata.pop("traceEvents", None)
    text = LAYOUTS[layout](events, metadata)
    found = Text(Stream(io.BytesIO(text.encode())).read, chunk_bytes)
    names = [event.name for piece in found.decoded(parse) for event in piece]
    assert names == [event["name"] for event in events]
    assert found.whole and not found.bad


@settings(max_examples=examples(300), deadline=None)
@given(st.recursive(_NASTY | st.none(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NASTY, inner, max_size=4)))
def test_structure_is_that_of_a_plain_scan(value: Any) -> None:
    text = json.dumps([{"b": [value]}, {"a": value}], ensure_ascii=False).encode()
    expected, depth, in_string, escaped = [], 0, False, False
    for at, byte in enumerate(text.decode("latin-1")):
        if in_string:
            escaped, in_string = byte == "\\" and not escaped, not (byte == '"' and not escaped)
        elif byte == '"':
            in_string = True
        elif byte in "{}[]":
            depth += 1 if byte in "{[" else -1
            expected.append((at, depth))
    found = brackets(text)
    assert list(zip(found.at.tolist(), found.depth.tolist(), strict=True)) == expected
    inside = objects(text[1:])
    assert inside.sound and inside.stop == len(text) - 2
    assert json.loads(text[1:][inside.starts[-1] : inside.ends[-1]]) == {"a": value}


def test_the_list_is_found_at_the_top_level_only() -> None:
    text = b'{"a": {"traceEvents": [1]}, "b": "\\"traceEvents\\": [", "traceEvents" : [ {}]}'
    assert text[find_events(text) :] == b" {}]}"
    assert find_events(b'{"a": "traceEvents", "b": ["traceEvents", [1]]}') == -1
    assert find_events(b'{"traceEvents": null}') == -1
