"""The recorded memory snapshots: whole, small, and without a path of the machine that recorded them."""

import gzip
import json
import re

import pytest

from tests.paths import ROOT

FOLDER = ROOT / "samples" / "memory"
CASES = json.loads((FOLDER / "manifest.json").read_text())["cases"]
FILES = sorted(FOLDER.glob("*.gz")) + sorted(FOLDER.glob("*.prof"))


def test_the_manifest_names_every_snapshot():
    named = {case[side]["file"] for case in CASES.values() for side in ("slow", "fixed") if side in case}
    assert named == {path.name for path in FILES if path.suffix == ".gz"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_snapshots_are_small_and_hold_no_path_of_a_machine(path):
    data = gzip.decompress(path.read_bytes())
    assert path.stat().st_size < 300_000
    assert not re.search(rb"/(home|root|work|opt|tmp|usr|mnt)/", data)


@pytest.mark.parametrize("side", ["slow", "fixed"])
def test_every_program_runs_in_miniature(side):
    torch = pytest.importorskip("torch")
    from memory_workloads import REGISTRY, Setup

    setup = Setup(torch.device("cpu"), tiny=True)
    for workload in REGISTRY.values():
        make = workload.sides().get(side)
        if make is None or workload.name == "resnet_activations":  # needs torchvision
            continue
        step = make(setup)
        for _ in range(2):
            step()
