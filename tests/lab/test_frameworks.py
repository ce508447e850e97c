"""What the recorder finds of frameworks: what was imported, and whose loop is alive."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from advisor.lab.frameworks import in_use


@pytest.fixture
def program(monkeypatch):
    """Modules of that name, with a version and classes, as if the program had imported them."""

    def imported(name: str, **members: object) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    for name in [name for name in sys.modules if name.partition(".")[0] in ("transformers", "accelerate", "timm", "lightning")]:
        monkeypatch.delitem(sys.modules, name)
    return imported


class Trainer:
    """Stands for a framework's."""


class Mine(Trainer):
    """A user's own."""


def test_an_imported_framework_has_its_version_and_no_loop_until_one_is_alive(program):
    program("transformers", __version__="4.57.1")
    program("transformers.trainer", Trainer=Trainer)
    assert in_use()["frameworks"] == {"transformers": "4.57.1"} and in_use()["loops"] == []
    mine = Mine()
    assert in_use()["loops"] == ["transformers.Trainer"] and mine


def test_a_model_is_told_by_where_its_class_stands(program):
    program("timm", __version__="1.0.31")
    made = type("ResNet", (), {"__module__": "timm.models.resnet"})()
    assert in_use() == {"frameworks": {"timm": "1.0.31"}, "loops": ["timm.Model"]} and made


def test_a_framework_that_says_no_version_has_that_which_is_installed(program, monkeypatch):
    program("accelerate", __version__=3)
    monkeypatch.setattr("advisor.lab.frameworks.version", {"accelerate": "1.15.0"}.__getitem__)
    assert in_use() == {"frameworks": {"accelerate": "1.15.0"}, "loops": []}
    program("timm")
    assert in_use()["frameworks"] == {"accelerate": "1.15.0", "timm": ""}


def test_nothing_is_found_where_nothing_was_imported(program):
    assert in_use() == {"frameworks": {}, "loops": []}
