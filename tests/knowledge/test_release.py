"""The version that reports say, of an advisor that is installed and of a checkout that is not."""

import json

import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine.settings import tomllib
from advisor.knowledge import release
from tests.paths import ROOT, sample


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setattr(release, "version", lambda name: None)
    release.release.cache_clear()
    yield
    release.release.cache_clear()


def test_a_checkout_that_nobody_installed_analyses_and_says_its_version(not_installed, tmp_path):
    done = CliRunner().invoke(app, ["analyze", str(sample("graph-candidate/fixed")), "-q", "-o", str(tmp_path / "report.json")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "report.json").read_text())["advisor"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_without_that_file_it_says_none(not_installed, monkeypatch, tmp_path):
    monkeypatch.setattr(release, "__file__", str(tmp_path / "advisor" / "knowledge" / "release.py"))
    assert release.release() == "0.0.0"
