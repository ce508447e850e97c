"""How inference servers name the ranges of their steps, and which kind of step a name says."""

from __future__ import annotations

import re
from functools import lru_cache

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_SUMS = r"(?:\([\dsqk_]{0,200}\))?"
_COUNTED = (
    # vLLM, gpu_worker.py: execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(…), execute_context_1(888_788544)_generation_0(0); and
    # before 0.14 execute_new_1_cached_31.
    re.compile(rf"execute_(?:\d+_)?context_(?P<prefills>\d{{1,12}}){_SUMS}_generation_(?P<decodes>\d{{1,12}}){_SUMS}"),
    re.compile(r"execute_new_(?P<prefills>\d{1,12})_cached_(?P<decodes>\d{1,12})"),
    # TensorRT-LLM, py_executor.py.
    re.compile(r"\[Executor\] _forward_step \d+: (?P<prefills>\d{1,12}) ctx reqs,(?: \d+ ctx tokens,)? (?P<decodes>\d{1,12}) gen reqs"),
)
"""Names that count the requests which begin and those which generate."""

_BY_MODE = re.compile(r"step\[(?P<mode>[A-Z_]{1,32})(?: [\w-]{1,24}=\d{1,12})*\]")
"""SGLang, scheduler.py: step[DECODE bs=31], step[EXTEND bs=15 toks=15360]."""
_MODES = {"EXTEND": PREFILL, "DECODE": DECODE, "MIXED": MIXED, "TARGET_VERIFY": "verify", "DRAFT_EXTEND": "draft"}

_BY_WORD = re.compile(r"(?<![a-z])(prefill|decode)(?![a-z])", re.IGNORECASE)


@lru_cache(maxsize=1 << 12)
def server_step(name: str) -> str:
    """The kind of step that a server's range is, "" where it is no server's."""
    for pattern in _COUNTED:
        if found := pattern.fullmatch(name):
            prefills, decodes = int(found["prefills"]), int(found["decodes"])
            return MIXED if prefills and decodes else PREFILL if prefills else DECODE if decodes else "idle"
    mode = _BY_MODE.fullmatch(name)
    return _MODES.get(mode["mode"], mode["mode"].lower()) if mode else ""


def phase(name: str) -> str:
    """The kind of step that a range of anybody's names, "" where it names none or both."""
    if kind := server_step(name):
        return kind
    words = {word.lower() for word in _BY_WORD.findall(name)}
    return words.pop() if len(words) == 1 else ""
