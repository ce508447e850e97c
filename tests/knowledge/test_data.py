"""Tables of the package: what is kept of them next to the bytecode is what was parsed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from advisor.engine.settings import tomllib
from advisor.knowledge.data import read
from tests.paths import ROOT

TABLES = sorted(path for folder in ("advisor", "rules") for path in (ROOT / folder).rglob("*.toml"))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to which Python writes bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "__pycache__").mkdir()
    return tmp_path


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_is_the_same_parsed_and_kept(path: Path, kept: Path) -> None:
    copy = kept / path.name
    copy.write_bytes(path.read_bytes())
    assert read(copy) == read(copy) == tomllib.loads(path.read_text(encoding="utf-8"))
    assert [one.name for one in (kept / "__pycache__").iterdir()] == [f"{path.name}.msgpack"]


def test_a_changed_table_is_parsed_again(kept: Path) -> None:
    table = kept / "table.toml"
    table.write_text("a = 1")
    assert read(table) == {"a": 1}
    table.write_text("a = 2")
    os.utime(table, ns=(1, 1))
    assert read(table) == {"a": 2}


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x92\x01\x02", b"\x81"])
def test_a_damaged_copy_is_not_used(kept: Path, damaged: bytes) -> None:
    table = kept / "table.toml"
    table.write_text("a = 1")
    read(table)
    (kept / "__pycache__" / "table.toml.msgpack").write_bytes(damaged)
    assert read(table) == {"a": 1}


def test_nothing_is_kept_where_python_keeps_no_bytecode(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text("a = 1")
    assert read(table) == {"a": 1}
    assert list(tmp_path.iterdir()) == [table]
    assert read(tmp_path / "none.toml") == {}
