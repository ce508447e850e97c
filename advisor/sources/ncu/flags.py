"""With which options a kernel was compiled: the note that ptxas leaves in the binary, `.note.nv.tkinfo`, with its command line.

ptxas turns PTX into machine code, for nvcc, NVRTC and Triton alike, so that its options are those that all of them passed on. What acts
before it, as --use_fast_math, leaves no mark.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from advisor.recordings.kernel_profiles import Flags
from advisor.sources.ncu.elf import sections_of

NOTE, OWNER, TYPE = ".note.nv.tkinfo", b"NVIDIA Corp\0", 2000  # an ELF note in which ptxas leaves its options

_ARCH = re.compile(r"(?:^|\s)(?:-arch|--gpu-name)[ =](sm_\d{2,3}[a-z]?)(?=\s|$)")
_LEVEL = re.compile(r"(?:^|\s)(?:-O ?|--opt-level[ =])([0-4])(?=\s|$)")
_DEBUG = re.compile(r"(?:^|\s)(?:-g|--device-debug)(?=\s|$)")
_REGISTERS = re.compile(r"(?:^|\s)--?maxrregcount[ =](\d{1,3})(?=\s|$)")


def flags_of(binary: memoryview) -> Flags | None:
    """None if the binary has no such note, as of an older toolkit. Never raises."""
    try:
        sections = sections_of(binary)
        options = next((options for tool, options in _tools(sections.get(NOTE, memoryview(b""))) if tool == "ptxas"), None)
    except (struct.error, LookupError, ValueError, ArithmeticError):
        return None
    if options is None:
        return None
    arch, level, registers = (pattern.search(options) for pattern in (_ARCH, _LEVEL, _REGISTERS))
    debug = _DEBUG.search(options) is not None
    return Flags(
        arch=arch[1] if arch else "",
        level=int(level[1]) if level else 0 if debug else 3,  # as ptxas documents its defaults
        debug=debug,
        lines=".debug_line" in sections,
        max_registers=int(registers[1]) if registers else None,
    )


def _tools(note: memoryview) -> Iterator[tuple[str, str]]:
    """Each tool that worked on the binary, and its options. A note has the sizes of owner and content, the type, and both, padded to 4 bytes.
    Its content is a version and five offsets into the texts that follow: object, tool, tool's version, its branch, its options."""
    at = 0
    while at + 12 <= len(note):
        owner, size, kind = struct.unpack_from("<III", note, at)
        start = at + 12 + _padded(owner)
        content = bytes(note[start : start + size])
        if kind == TYPE and bytes(note[at + 12 : at + 12 + owner]) == OWNER:
            offsets = struct.unpack_from("<5I", content, 4)
            texts = content[24:]
            tool, options = (texts[offset:].split(b"\0", 1)[0].decode("utf-8", "replace") for offset in (offsets[1], offsets[4]))
            yield tool, options
        at = start + _padded(size)


def _padded(size: int) -> int:
    return size + -size % 4


def note_of(flags: Flags) -> bytes:
    """The note that says the same and nothing else."""
    options = f"-arch {flags.arch} " * bool(flags.arch) + f"-O{flags.level}" + " -g" * flags.debug
    options += f" -maxrregcount {flags.max_registers}" * (flags.max_registers is not None)
    texts = b"\0ptxas\0" + options.encode() + b"\0"
    content = struct.pack("<6I", 2, 0, 1, 0, 0, 7) + texts
    return struct.pack("<III", len(OWNER), len(content), TYPE) + OWNER + content + bytes(-len(content) % 4)
