"""Large arrays of a JSON document, decoded piece by piece: the rest of the document is small and follows as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from advisor.sources.whole import MOST_BYTES, too_large

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?P<end>"?)|[\[\]{}]', re.DOTALL)
"""A string, possibly cut off, or a bracket."""
_QUOTE, _OPENING, _LIST = b'"'[0], b"[{", b"["[0]


class Readable(Protocol):
    """What bytes come from."""

    def read(self, size: int, /) -> bytes: ...


Path = tuple[bytes, ...]
"""The quoted keys by which brackets were opened, the outermost first; b"" of a list's member."""


def pieces(stream: Readable, path: str, depth: int, wanted: Callable[[Path], bool], chunk_bytes: int = 1 << 24) -> Iterator[tuple[Path, bytes]]:
    """Members of the wanted lists that open as bracket number `depth`: whole objects, separated by commas. Then, without a path, the document with
    these lists emptied. Raises TraceError if that document is larger than may be decoded as a whole."""
    rest: list[bytes] = []
    held, level, begin, at, inside = 0, 0, 0, 0, False
    keys: list[bytes] = []
    last = buffer = b""
    while chunk := stream.read(chunk_bytes):
        buffer, at, begin, cut = buffer[begin:] + chunk, at - begin, 0, 0
        for token in _TOKEN.finditer(buffer, at):
            start, end = token.span()
            byte = buffer[start]
            if byte == _QUOTE:
                if not token["end"]:
                    break
                if level < depth:
                    last = token[0]
            elif byte in _OPENING:
                level += 1
                if level <= depth:
                    keys.append(last)
                    last = b""
                if level == depth and byte == _LIST and wanted(tuple(keys)):
                    rest.append(buffer[begin:end])
                    held, begin, inside = held + end - begin, end, True
            else:
                if level == depth and inside:
                    yield tuple(keys), buffer[begin:start].strip(b" \t\r\n,")
                    begin, inside = start, False
                if level <= depth and keys:
                    keys.pop()
                level -= 1
                if level == depth:
                    cut = end
            at = end
        if not inside:
            rest.append(buffer[begin:at])
            held, begin = held + at - begin, at
        elif cut > begin:
            yield tuple(keys), buffer[begin:cut].strip(b" \t\r\n,")
            begin = cut
        if held + len(buffer) - begin > MOST_BYTES:
            raise too_large(path, MOST_BYTES)
    yield (), b"".join([*rest, b"" if inside else buffer[begin:]])
