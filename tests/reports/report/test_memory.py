"""A report about memory in every format: what holds the peak, drawn and as a table, whatever names hold."""

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.recordings.recording import Recording
from advisor.report.finding import BytesSaved, Saving
from advisor.report.model import Report
from advisor.reports import formats
from advisor.sources.memory.snapshot import from_value
from tests.memory_build import Memory, at, frame, parameter, trained


def report(memory):
    return run(Recording("memory", "snapshot.pickle", (memory.snapshot(),)), built_in().values())


@pytest.mark.parametrize("name", formats())
@pytest.mark.parametrize("memory", [trained(layers=8, activation=1024), trained(steps=1, activation=1), Memory()], ids=["found", "quiet", "empty"])
def test_every_format_renders(name, memory):
    if not memory.events:
        memory.older(10)
    assert formats()[name].render(report(memory))


def test_a_saved_report_reads_back_the_same():
    made = report(trained())
    assert Report.from_json(made.to_json()) == made and made.window is None and made.time is None and made.headline.step_us is None


def test_text_and_markdown_say_what_holds_the_peak():
    made = report(trained(layers=8, activation=1024))
    text = formats()["text"].render(made)
    assert re.search(r"\d+%\s+9\.\d+ GB  activations  mostly addmm in train:5, train.py:5", text), text
    assert "| activations |" in formats()["markdown"].render(made)


@pytest.mark.parametrize(
    ("saving", "of"),
    [
        (BytesSaved(1e9, 2e9, 3e9, "simulated"), "of the peak"),
        (BytesSaved(1e9, 2e9, 3e9, "simulated", of="reserved"), "of the reserved peak"),
        (Saving(10.0, 20.0, 30.0, "measured"), "of the recorded time"),
    ],
)
def test_a_saving_is_said_to_be_a_part_of_what_it_is_a_part_of(saving, of):
    made = report(trained(layers=8, activation=1024))
    finding = msgspec.structs.replace(made.findings[0], saving=saving, checks=("memory-balance",))
    made = msgspec.structs.replace(made, findings=(finding,))
    page = formats()["html"].render(made)
    assert f"<h4>Saving {of}</h4>" in page and "1 check of the trace, which passed. " in page
    markdown = formats()["markdown"].render(made)
    assert f" {of}\n" in markdown and "| Saves |" in markdown


def test_drawings_are_well_formed_and_names_in_them_do_no_harm():
    m = Memory()
    m.alloc(64, parameter())
    bad = [frame("at::_ops::addmm::call()"), frame("forward", "/x/<script>alert(1)</script>.py", 3)]
    for _ in range(3):
        m.free(m.alloc(500, bad), m.alloc(400, at(4, "relu")))
    page = formats()["html"].render(report(m))
    assert "<script>alert" not in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 4
    for drawing in drawings:
        ET.fromstring(drawing)


def test_rows_of_the_table_sum_to_the_peak():
    made = report(trained(layers=8))
    assert sum(row.bytes for row in made.memory.at_peak) == made.memory.peak_allocated_bytes
    curve = made.memory.curve
    assert sum(curve.categories[name][curve.peak] for name in curve.categories) == made.memory.peak_allocated_bytes


def test_letters_on_a_dark_category_are_light():
    """Of what is leaked, which the map shows in a dark red; activations are orange."""
    m = Memory()
    for _ in range(6):
        m.alloc(600, at(4, "relu"))
        m.free(m.alloc(500, at(4, "addmm")))
    page = formats()["html"].render(report(trained(layers=8, activation=1024)))
    assert 'style="fill:var(--on-box)">' in page and "--k-pointwise" in page
    strong = re.findall(r'fill="var\(--(k-\w+)\)"[^<]*<title>[^<]*</title></rect><text [^>]*fill:var\(--on-(\w+)\)', page)
    assert strong and all((ink == "strong") == (color in ("k-gemm", "k-move", "k-comm")) for color, ink in strong)


def test_what_is_held_without_events_is_no_most():
    memory = Memory()
    memory.older(10)
    assert "GPU 0: when the snapshot was written, 10.5 MB allocated" in formats()["markdown"].render(report(memory))
    assert "GPU 0: at most " in formats()["markdown"].render(report(trained()))


@pytest.mark.parametrize(("activation", "beside"), [(512, True), (1, False)])
def test_of_several_gpus_the_one_that_was_looked_at_is_named(activation, beside):
    both = [trained(layers=8, activation=1024).value(), trained(activation=activation).value()]
    for segment in both[1]["segments"]:
        segment["device"] = 1
    value = {**both[0], "segments": both[0]["segments"] + both[1]["segments"], "device_traces": [of["device_traces"][0] for of in both]}
    made = run(Recording("memory", "two.pickle", (from_value(value, "two.pickle", 1),)), built_in().values())
    assert made.headline.summary.startswith("GPU 0 holds most of 2. ") == beside
    assert (made.headline.judged, "only GPU 0 was looked at" in made.headline.judged_why) == (("partly", True) if beside else ("yes", False))
    assert "; 1 other GPU holds " in formats()["markdown"].render(made)


def test_each_gpu_that_holds_anything_is_counted_and_none_of_two_alike_holds_most():
    value = trained(layers=8, activation=1024).value()
    others = [[segment | {"device": gpu} for segment in value["segments"]] for gpu in (1, 2)]
    value = {**value, "segments": value["segments"] + others[0] + others[1], "device_traces": value["device_traces"] * 3}
    made = run(Recording("memory", "three.pickle", (from_value(value, "three.pickle", 1),)), built_in().values())
    assert made.headline.summary.startswith("GPU 0 holds as much as any of 3. ") and "which holds as much as any; 2 others not" in made.headline.judged_why
