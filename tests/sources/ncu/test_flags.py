"""With which options a kernel was compiled, from the note of ptxas in its binary."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.recordings.kernel_profiles import Flags
from advisor.sources import read
from advisor.sources.ncu.flags import flags_of, note_of
from advisor.sources.redact import redact
from tests.kernels import block, field, report, result
from tests.paths import examples
from tests.sources.ncu.test_lines import elf, sources, table


def note(options: str, tool: str = "ptxas", owner: bytes = b"NVIDIA Corp\0", kind: int = 2000) -> bytes:
    """As CUDA 13 writes it: version, then where in the texts object, tool, its version, its branch and its options begin."""
    texts, at = b"\0", []
    for text in (tool, "Cuda compilation tools, release 13.0, V13.0.39", "Build cuda_13.0.r13.0/compiler.36195134_0", options):
        at.append(len(texts))
        texts += text.encode() + b"\0"
    content = struct.pack("<6I", 2, 0, *at) + texts
    return struct.pack("<III", len(owner), len(content), kind) + owner + content + bytes(-len(content) % 4)


def binary(*notes: bytes, **sections: bytes) -> memoryview:
    return memoryview(elf(text_k=b"x", **{"note.nv.tkinfo": b"".join(notes)}, **sections))


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ("-regUsageLevel 3 -arch sm_90 -m 64 -w  ", Flags("sm_90")),
        ("-v -arch=sm_100a -O1", Flags("sm_100a", level=1)),
        ("--gpu-name sm_80 --opt-level 0 --maxrregcount 40", Flags("sm_80", level=0, max_registers=40)),
        ("-arch sm_86 -g --dont-merge-basicblocks --return-at-end", Flags("sm_86", level=0, debug=True)),
        ("-maxrregcount=32 -O3 -generate-line-info", Flags(max_registers=32)),
        ("", Flags()),
    ],
)
def test_the_options_are_read(options, flags):
    assert flags_of(binary(note(options))) == flags


def test_the_note_of_ptxas_is_the_one_that_counts():
    assert flags_of(binary(note("-O0", tool="nvlink"), note("-arch sm_90", owner=b"GNU\0"), note("-arch sm_70", kind=1000), note("-O2"))) == Flags(level=2)
    assert flags_of(binary(note("-O0", tool="nvlink"))) is None
    for other in (elf(text_k=b"x"), b"MZ", b""):
        assert flags_of(memoryview(other)) is None


def test_line_numbers_are_there_or_not():
    rows = table(bytes([3, 50, 1]))
    found = flags_of(binary(note("-arch sm_90"), debug_line=rows))
    assert found == Flags("sm_90", lines=True)


@given(st.integers(0, 700), st.binary(min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_damage_never_raises(at, junk):
    good = bytearray(binary(note("-arch sm_90 -O3")))
    good[at : at + len(junk)] = junk
    flags_of(memoryview(bytes(good)))
    flags_of(memoryview(bytes(good[:at])))


@given(st.builds(Flags, st.sampled_from(["", "sm_90", "sm_100a"]), st.integers(0, 4), st.booleans(), st.just(False), st.none() | st.integers(1, 255)))
def test_a_note_says_what_it_is_made_of(flags):
    assert flags_of(binary(note_of(flags))) == flags


def test_a_report_has_its_kernels_flags_and_keeps_them_when_it_is_redacted(tmp_path):
    source, target = tmp_path / "k.ncu-rep", tmp_path / "out.ncu-rep"
    kernel = result("k", {0: field(3, 5000.0)}) + field(15, field(1, 4242))
    made = bytes(binary(note("-arch sm_90 -O1 -o /home/me/hunter2.cubin"), debug_line=table(bytes([3, 50, 1]))))
    source.write_bytes(report(sources(made), block([kernel], ["gpu__time_duration.sum"])))
    redact(source, target)
    for path in (source, target):
        (found,) = read(path).parts[0].kernels
        assert found.flags == Flags("sm_90", level=1, lines=True) and found.source is not None and found.source[1] == 51
    assert b"hunter2" not in target.read_bytes()
