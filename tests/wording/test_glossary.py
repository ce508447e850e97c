"""docs/glossary.md: the field's terms, each explained in one or two sentences, and used."""

import re

from tests.paths import ROOT
from tests.wording.language import faults, glossary, sentences

OF_THE_FIELD = (
    "GEMM", "SM", "warp", "occupancy", "kernel launch overhead", "CPU overhead", "elementwise", "eager attention", "host-to-device copy", "dataloader",
    "exposed communication", "profiler overhead", "roofline", "arithmetic intensity", "step", "prefill", "decode", "KV cache", "CUDA graph", "true step",
)  # fmt: skip


def forms() -> dict[str, str]:
    """Each form of each term, and what the entry says."""
    return {form: meaning for entry, meaning in glossary().items() for form in entry.split(", ")}


def test_the_terms_of_the_field_are_explained() -> None:
    assert not {*OF_THE_FIELD} - {*forms()}


def test_no_term_is_explained_twice() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    terms = [form.lower() for row in rows if row != "Term" and set(row) != {"-"} for form in row.split(", ")]
    assert len(terms) == len({*terms})


def test_an_entry_is_one_or_two_short_sentences() -> None:
    assert not {entry: meaning for entry, meaning in glossary().items() if len([*sentences(meaning)]) > 2 or [*faults(meaning)]}
