import runpy
import sys

import pytest

pytest.importorskip("torch")

from tests.paths import ROOT


@pytest.mark.parametrize("fixed", [[], ["--fixed"]])
def test_the_example_of_the_readme_trains(monkeypatch, capsys, fixed):
    few = ["--steps", "100", "--batch", "4", "--width", "8", "--layers", "1"]
    monkeypatch.setattr(sys, "argv", ["train_mlp.py", *few, *fixed])
    runpy.run_path(str(ROOT / "docs" / "examples" / "train_mlp.py"), run_name="__main__")
    assert "step 100: mean loss" in capsys.readouterr().out
