"""Nothing that names people, machines or secrets is left of a redacted file, wherever it stood; and the report stays as it was."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.sources.redact import COPIERS, WRITERS, redact
from advisor.sources.sniff import SOURCES
from tests.paths import MANY_SAMPLES, sampled
from tests.sources.canaries import SECRETS, WORD, files, found_in

TOLD = "\n".join(SECRETS.values())
"""All kinds at once: what is left says which."""


def redacted(data: bytes, suffix: str, folder) -> bytes:
    """The redacted file; nothing where it was refused, which gives nothing away."""
    source, target = folder / f"in{suffix}", folder / f"out{suffix}"
    source.write_bytes(data)
    target.unlink(missing_ok=True)
    try:
        redact(source, target)
    except AdvisorError:
        return b""
    return target.read_bytes()


@pytest.mark.parametrize("number", sampled(range(len(list(files(Path("."))))), 1 if MANY_SAMPLES else 6))
def test_nothing_is_left_wherever_it_stood(number, tmp_path):
    _, suffix, places = list(files(tmp_path))[number]
    refused, all_places = 0, 0
    for (where, program), made in places:
        # A word alone is told from no other where programs name their own parts: there it must look like what it is.
        for text in (TOLD, *(() if program else (WORD,))):
            kept = redacted(made(text), suffix, tmp_path)
            assert not found_in(kept), f"{where}: {found_in(kept)[:3]} of {text[:40]!r}"
            refused, all_places = refused + (not kept), all_places + 1
    assert refused < all_places * 0.5, "most places leave the file readable"


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind_alone_is_masked_in_the_name_of_a_kernel_and_a_range(kind, tmp_path):
    event = '{"ph": "X", "cat": "%s", "name": %s, "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7}}'
    for where in ("x %s", "%s", "a=%s b"):
        name = json.dumps(where % SECRETS[kind])
        text = '{"traceEvents": [' + ", ".join(event % (category, name) for category in ("kernel", "cpu_op", "user_annotation", "python_function")) + "]}"
        kept = redacted(text.encode(), ".json", tmp_path)
        assert kept and not found_in(kept), found_in(kept)


def test_every_source_is_redacted_and_planted_in(tmp_path):
    known = SOURCES.keys()
    assert known == WRITERS.keys() | COPIERS.keys() and known == {source for source, _, _ in files(tmp_path)}


def test_the_scan_finds_what_is_planted():
    assert all(found_in(text.encode()) and found_in(gzip.compress(text.encode())) for text in SECRETS.values())
