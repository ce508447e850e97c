"""Formats that are decoded in a single piece are refused beyond a size, before they are decoded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from advisor import sources
from advisor.errors import TraceError
from advisor.recordings.timeline import Timeline
from advisor.sources import json_pieces, whole
from tests.fuzz import examples


@pytest.mark.parametrize(("name", "instead"), [("proton-tree", "data='trace'"), ("flight", "TORCH_FR_BUFFER_SIZE=2000")])
def test_a_file_beyond_the_limit_is_refused_by_its_size(name: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "proton-tree": lambda: json.dumps(examples.proton_tree()).encode(),
        "flight": lambda: pickle.dumps(examples.flight(), 2),
    }[name]()
    path = tmp_path / "recording"
    path.write_bytes(made)
    assert sources.read(path).parts
    monkeypatch.setattr(whole, "MOST_BYTES", len(made) - 1)
    with pytest.raises(TraceError, match="decoded in memory as a whole") as error:
        sources.read(path)
    assert instead in error.value.hint
    monkeypatch.setattr(whole, "MOST_BYTES", len(made))
    assert sources.read(path).parts


@pytest.mark.parametrize("name", ["proton-trace", "rocprof-json"])
def test_a_file_of_events_is_read_beyond_the_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces; all but its lists of events must be smaller."""
    made = {"proton-trace": lambda: json.dumps(examples.proton_trace(), separators=(",", ":")), "rocprof-json": lambda: json.dumps(examples.rocprof_json())}[
        name
    ]()
    path = tmp_path / "recording"
    path.write_text(made)
    was = sources.read(path).parts[0]
    size = len(made) - 1 if name == "proton-trace" else len(made) * 3 // 4
    for module in (whole, json_pieces):
        monkeypatch.setattr(module, "MOST_BYTES", size)
    now = sources.read(path).parts[0]
    assert isinstance(was, Timeline) and isinstance(now, Timeline) and len(was.gpu_ops) == len(now.gpu_ops) > 0
    assert was.gpu_ops["name"].tolist() == now.gpu_ops["name"].tolist() and was.gpu_ops["start_us"].tolist() == now.gpu_ops["start_us"].tolist()
    assert was.gpu_annotations["name"].tolist() == now.gpu_annotations["name"].tolist()


def test_a_large_trace_of_proton_that_was_cut_off_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is whole of it is read; a small one of a single line is read as a whole, so it is damaged."""
    made = json.dumps(examples.proton_trace(), separators=(",", ":"))
    path = tmp_path / "recording"
    path.write_text(made[: made.rindex("},{") + 1])
    monkeypatch.setattr(whole, "MOST_BYTES", len(made) // 2)
    (part,) = sources.read(path).parts
    assert isinstance(part, Timeline) and any(one.check == "complete-file" for one in part.source.issues)
