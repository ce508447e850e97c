"""JSON of reports in which no name can control the terminal; the parsed content is the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from advisor.knowledge.expressions import expression

# Control characters, bidirectional overrides, invisible and unpaired ones: a name could use them to drive a terminal,
# or to look like something else (CVE-2021-42574).
UNSEEN = expression(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
SURROGATE = expression("[\ud800-\udfff]")


def as_json(shown: Any, indent: int = 1) -> bytes:
    """Indented, or in a single line without spaces if below 0. Invisible characters become JSON escapes; unpaired surrogates, of paths that are not UTF-8,
    become the text of one.
    """
    try:
        data = msgspec.json.encode(shown)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_paired(msgspec.to_builtins(shown)))
    text = msgspec.json.format(data, indent=indent).decode()
    return UNSEEN.sub(lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text).encode()


def _paired(value: Any) -> Any:
    if isinstance(value, str):
        return SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
    if isinstance(value, (list, tuple)):
        return [_paired(item) for item in value]
    return {_paired(name): _paired(item) for name, item in value.items()} if isinstance(value, dict) else value
