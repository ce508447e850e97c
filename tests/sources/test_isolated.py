"""Interpreters that work for this one: whose decisions they follow."""

import pytest

from advisor.sources import isolated


@pytest.mark.parametrize("kept", [True, False])
def test_a_helper_leaves_compiled_modules_behind_only_where_this_process_does(kept, tmp_path, monkeypatch):
    """Isolated, it does not read the environment, which may say so; a disk that is full would leave them cut off for all."""
    (tmp_path / "asked.py").write_text("import sys\n\ndef serve():\n    import answered\n    sys.stdout.write('done')\n")
    (tmp_path / "answered.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", not kept)
    process = isolated.start("asked")
    out, _ = process.communicate()
    assert out == b"done" and any(tmp_path.rglob("answered*.pyc")) == kept
