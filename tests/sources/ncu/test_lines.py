"""The line of a kernel, from the line table of its binary."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sources.ncu.lines import Line, first_line
from tests.kernels import block, field, plain_report, report, result
from tests.paths import examples


def table(program: bytes, version: int = 2) -> bytes:
    """A unit of a line table: one folder, one file `k.py` in it, line base -5, 14 lines to an opcode."""
    rest = (b"\x01" if version == 4 else b"") + bytes([1, 256 - 5, 14, 10]) + bytes([0, 1, 1, 1, 1, 0, 0, 0, 1])
    names = b"/home/me\0\0" + b"k.py\0\x01\0\0" + b"\0"
    head = bytes([1]) + rest + names
    body = struct.pack("<HI", version, len(head)) + head + program
    return struct.pack("<I", len(body)) + body


def elf(**sections: bytes) -> bytes:
    """An ELF file of 64 bits with these sections (`_` for the points in their names) and one of names."""
    names = ["", *("." + name.replace("_", ".", 1) if name.startswith("text") else "." + name for name in sections), ".shstrtab"]
    strings = b"".join(name.encode() + b"\0" for name in names)
    datas = [b"", *sections.values(), strings]
    at, heads = 64, []
    for i, data in enumerate(datas):
        heads.append(struct.pack("<IIQQQQ24x", strings.index(names[i].encode() + b"\0"), 1, 0, 0, at, len(data)))
        at += len(data)
    header = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", at) + bytes(10) + struct.pack("<HHH", 64, len(datas), len(datas) - 1)
    return header + b"".join(datas) + b"".join(heads)


# advance the line by 50, then copy the row; or a special opcode, which advances it by 10 - 10 - 5 = -5 more and copies
@pytest.mark.parametrize(("program", "line"), [(bytes([3, 50, 1]), 51), (bytes([3, 50, 10]), 46), (bytes([0, 9, 2, *bytes(8), 3, 0xC2, 0, 1]), 67)])
@pytest.mark.parametrize("version", [2, 4])
def test_the_first_row_names_the_line(program, line, version):
    assert first_line(memoryview(elf(text_k=b"x", debug_line=table(program, version)))) == Line("/home/me/k.py", line)


def test_binaries_of_several_kernels_or_none_say_nothing():
    rows = table(bytes([3, 50, 1]))
    for binary in (elf(text_k=b"x", text_m=b"x", debug_line=rows), elf(text_k=b"x"), elf(debug_line=rows), b"MZ", b""):
        assert first_line(memoryview(binary)) is None


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_damage_says_nothing_and_never_raises(at, junk):
    good = bytearray(elf(text_k=b"x", debug_line=table(bytes([3, 50, 1]))))
    good[at : at + len(junk)] = junk
    first_line(memoryview(bytes(good)))
    first_line(memoryview(bytes(good[:at])))


def sources(binary: bytes) -> bytes:
    message = field(1, 4242) + field(4, binary)
    body = struct.pack("<I", len(message)) + message
    header = field(1, 1) + field(5, len(body))
    return struct.pack("<I", len(header)) + header + body


def test_a_report_s_kernels_have_the_lines_of_their_binaries(tmp_path):
    import advisor
    from advisor.sources import read

    kernel = result("k", {0: field(3, 5000.0)}) + field(15, field(1, 4242))
    made = report(sources(elf(text_k=b"x", debug_line=table(bytes([3, 50, 1])))), block([kernel], ["gpu__time_duration.sum"]))
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(made)
    assert read(path).parts[0].kernels[0].source == ("/home/me/k.py", 51)
    path.write_bytes(made.replace(b"\x7fELF", b"\x7fELV").replace(field(1, 4242) + b"\x22", b"\x0f" * 3 + b"\x22", 1))
    assert [k.source for k in read(path).parts[0].kernels] == [None] and not read(path).parts[0].damage
    path.write_bytes(plain_report())
    assert [k.source for k in read(path).parts[0].kernels] == [None, None]
    assert advisor.analyze(path).kernels


def test_a_block_may_hold_sources_and_results(tmp_path):
    from advisor.sources import read

    source = field(1, 4242) + field(4, elf(text_k=b"x", debug_line=table(bytes([3, 50, 1])))) + field(6, 524294)
    kernel = result("k", {0: field(3, 5000.0)}) + field(15, field(1, 4242))
    body = b"".join(struct.pack("<I", len(message)) + message for message in (source, kernel))
    header = field(1, 1) + field(2, 1) + field(4, field(1, b"gpu__time_duration.sum")) + field(5, len(body))
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(report(struct.pack("<I", len(header)) + header + body))
    (found,) = read(path).parts[0].kernels
    assert (found.name, found.duration_us, found.source) == ("k", 5.0, ("/home/me/k.py", 51))
    assert not read(path).parts[0].damage
