"""The exact structure of a piece of JSON text: the brackets outside of strings, and their depth.

Always right for JSON in any layout. For other text, the caller's decode fails."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

_QUOTE, _BACKSLASH, _OPEN_BRACE, _CLOSE_BRACE, _OPEN_LIST, _CLOSE_LIST = b'"\\{}[]'
_BETWEEN = b" \t\r\n,"


class Brackets(msgspec.Struct, frozen=True):
    """Brackets outside of strings: their positions, bytes and the depth after each; and the quotes that are not escaped."""

    quotes: NDArray[np.int64]
    at: NDArray[np.int64]
    byte: NDArray[np.uint8]
    depth: NDArray[np.int64]

    def in_string(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each byte is inside a string (an opening quote is not, a closing quote is)."""
        return (np.searchsorted(self.quotes, position) & 1).astype(bool)

    def depth_at(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many brackets are open before each position."""
        return np.r_[0, self.depth][np.searchsorted(self.at, position)]


class Objects(msgspec.Struct, frozen=True):
    """The objects at depth 0 of a text that starts inside a list: each `text[start:end]`.

    `stop` is the position of the list's closing bracket, or -1. `sound` is false if a bracket closes without an open bracket."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    stop: int
    sound: bool


def brackets(text: bytes) -> Brackets:
    """Find all brackets outside of strings in `text`, which starts outside of a string."""
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    if b'\\"' in text:
        quotes = quotes[~_escaped(text, data, quotes)]
    at = np.flatnonzero((data == _OPEN_BRACE) | (data == _CLOSE_BRACE) | (data == _OPEN_LIST) | (data == _CLOSE_LIST))
    at = at[np.searchsorted(quotes, at) & 1 == 0]
    byte = data[at]
    opens = (byte == _OPEN_BRACE) | (byte == _OPEN_LIST)
    return Brackets(quotes, at, byte, np.cumsum(np.where(opens, 1, -1)))


def objects(text: bytes) -> Objects:
    """Find the objects of a list. `text` begins after its `[` or after a member."""
    found = brackets(text)
    below = np.flatnonzero(found.depth < 0)
    n = int(below[0]) if below.size else found.at.size
    at, byte, depth = found.at[:n], found.byte[:n], found.depth[:n]
    starts = at[(byte == _OPEN_BRACE) & (depth == 1)]
    ends = at[(byte == _CLOSE_BRACE) & (depth == 0)] + 1
    if starts.size and text[: int(starts[0])].strip(_BETWEEN):
        # Not at an event's start: what looks like one may be part of another.
        return Objects(starts[:0], ends[:0], -1, False)
    last = int(ends[-1]) if ends.size else 0
    stop, sound = -1, starts.size - ends.size in (0, 1)
    if below.size:
        stop = int(found.at[n])
        # Quotes that are not escaped turn strings inside out: a list ends after a whole event or not at all.
        sound = sound and found.byte[n] == _CLOSE_LIST and not text[last:stop].strip(_BETWEEN)
    return Objects(starts[: ends.size], ends, stop if sound else -1, bool(sound))


def _escaped(text: bytes, data: NDArray[np.uint8], quotes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which quotes are escaped: an odd number of backslashes is before them."""
    escaped = np.zeros(quotes.size, bool)
    after_backslash = np.flatnonzero((quotes > 0) & (data[quotes - 1] == _BACKSLASH))
    for i, quote in zip(after_backslash.tolist(), quotes[after_backslash].tolist(), strict=True):
        first = quote
        while first > 0 and text[first - 1] == _BACKSLASH:
            first -= 1
        escaped[i] = (quote - first) & 1
    return escaped
