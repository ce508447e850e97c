"""What directories say is installed is what importlib.metadata says."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.knowledge import installed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    installed._places.cache_clear()
    yield tmp_path
    installed._places.cache_clear()


def put(site: Path, folder: str, **texts: str) -> None:
    (site / folder).mkdir(parents=True)
    for name, text in texts.items():
        (site / folder / {"entries": "entry_points.txt", "meta": "METADATA", "info": "PKG-INFO"}[name]).write_text(text)


META = "Metadata-Version: 2.1\nName: our-rules\nVersion: 1.2.3\n"


@pytest.mark.parametrize("folder", ["our_rules-1.2.3.dist-info", "Our_Rules-1.2.3.dist-info", "our_rules.egg-info", "our_rules-1.2.3.egg/EGG-INFO"])
@pytest.mark.parametrize("group", ["advisor.rules", "advisor.others"])
def test_entry_points_are_those_of_the_standard_library(site: Path, folder: str, group: str) -> None:
    put(site, folder, entries=f"[{group}]\nours = ours.rules\n", meta=META, info=META)
    if folder.startswith("our_rules-1.2.3.egg/"):
        sys.path.insert(0, str(site / "our_rules-1.2.3.egg"))
    assert set(installed.entry_points("advisor.rules")) == set(importlib.metadata.entry_points(group="advisor.rules"))
    assert installed.version("our-rules") == importlib.metadata.version("our-rules") == "1.2.3"


def test_a_version_is_read_where_it_is_installed(site: Path) -> None:
    put(site, "our_rules-1.2.3.dist-info", meta=META)
    assert (installed.version("our-rules"), installed.version("no-such-rules")) == ("1.2.3", None)


def test_what_another_finder_knows_is_found(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        @staticmethod
        def find_distributions(context: object) -> list[importlib.metadata.Distribution]:
            return [importlib.metadata.PathDistribution(site / "elsewhere" / "our_rules-1.2.3.dist-info")]

    put(site, "elsewhere/our_rules-1.2.3.dist-info", meta=META, entries="[advisor.rules]\nours = ours.rules\n")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert [point.name for point in installed.entry_points("advisor.rules")] == ["ours"]
    assert installed.version("our-rules") == "1.2.3"
