"""Formats that are decoded in a single piece are refused beyond a size, before they are decoded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from advisor import sources
from advisor.errors import TraceError
from advisor.sources import whole
from tests.fuzz import examples


@pytest.mark.parametrize("name", ["proton-tree", "proton-trace", "rocprof-json", "flight"])
def test_a_file_beyond_the_limit_is_refused_by_its_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "proton-tree": lambda: json.dumps(examples.proton_tree()).encode(),
        "proton-trace": lambda: json.dumps(examples.proton_trace(), separators=(",", ":")).encode(),
        "rocprof-json": lambda: json.dumps(examples.rocprof_json()).encode(),
        "flight": lambda: pickle.dumps(examples.flight(), 2),
    }[name]()
    path = tmp_path / "recording"
    path.write_bytes(made)
    assert sources.read(path).parts
    monkeypatch.setattr(whole, "MOST_BYTES", len(made) - 1)
    with pytest.raises(TraceError, match="decoded in memory as a whole"):
        sources.read(path)
    monkeypatch.setattr(whole, "MOST_BYTES", len(made))
    assert sources.read(path).parts
