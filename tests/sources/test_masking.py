"""What looks like a secret in a recording's names is in no report, whatever the format; a switch shows it."""

import json

import pytest

from advisor import analyze
from advisor.knowledge.secrets import SHOW, kinds_in, masked
from advisor.report.saved import read_report
from advisor.reports import formats
from tests.command import advisor
from tests.fuzz import examples

TOKEN = "hf_" + "a1B2" * 8
PASSWORD = "hunter2hunter2"


@pytest.fixture
def telling(tmp_path):
    """A trace whose kernels, ranges, ops, files and device name secrets."""
    trace = examples.training()
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op", "user_annotation", "python_function") and not event["name"].startswith("ProfilerStep"):
            event["name"] += f" {TOKEN} --password {PASSWORD}"
    trace["deviceProperties"][0]["name"] += f" {TOKEN}"
    trace["cuda_driver_version"] = TOKEN
    path = tmp_path / "telling.json"
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("name", sorted(formats()))
def test_no_format_shows_a_secret(telling, name):
    shown = formats()[name].render(analyze(telling))
    assert TOKEN not in shown and PASSWORD not in shown


def test_the_switch_shows_it(telling, monkeypatch):
    assert "[secret]" in formats()["json"].render(analyze(telling))
    monkeypatch.setenv(SHOW, "1")
    assert TOKEN in formats()["json"].render(analyze(telling))


def test_the_commands_switch_shows_it(telling, tmp_path):
    for switch, shown in (((), False), (("--show-secrets",), True)):
        done = advisor(*switch, "analyze", telling, "-f", "json", "-o", "-", cwd=tmp_path)
        assert done.returncode == 0 and (TOKEN in done.stdout.decode()) == shown


def test_what_names_a_secret_stays_and_its_value_does_not():
    for text, kept in (
        ("AWS_SECRET_ACCESS_KEY=abc123", "AWS_SECRET_ACCESS_KEY=[secret]"),
        ("https://u:p@host/x", "https://[secret]host/x"),
        ("x --api-key k3y", "x --api-key [secret]"),
    ):
        assert masked(text) == kept and kinds_in("a " + TOKEN) == {"a Hugging Face token"}


def test_a_report_that_was_saved_with_one_does_not_show_it(telling, tmp_path, monkeypatch):
    monkeypatch.setenv(SHOW, "1")
    saved = tmp_path / "report.json"
    saved.write_text(formats()["json"].render(analyze(telling)))
    monkeypatch.delenv(SHOW)
    assert TOKEN in saved.read_text() and TOKEN not in formats()["json"].render(read_report(saved))


@pytest.mark.parametrize(
    "name",
    [
        "void token_mixer<float>(int)",
        "num_tokens=512",
        "ns::token::kernel",
        "tokenizer.py(12): encode",
        "basic block 12",
        "max_token: 5",
        "std::basic_string<char>",
    ],
)
def test_names_of_programs_are_no_secrets(name):
    assert masked(name) == name
