"""How inference servers name the ranges of their steps, and what a name says: the kind of step, its requests, tokens and cached keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from advisor.knowledge.expressions import expression
from advisor.knowledge.structs import replace

PREFILL, DECODE, MIXED, VERIFY, DRAFT = "prefill", "decode", "mixed", "verify", "draft"
PHASES = (PREFILL, DECODE, MIXED, VERIFY, DRAFT)
VLLM, SGLANG, TENSORRT_LLM = "vLLM", "SGLang", "TensorRT-LLM"


class ServerMark(msgspec.Struct, frozen=True):
    """Fields of the name of a server's range; -1 if the name lacks them.

    phase: of `PHASES`, or the server's own word, such as "idle". requests: in the step, `decodes` of them past their prompt. query_tokens: Σq, computed
    tokens. kv_tokens: Σk, tokens with keys and values that attention reads. query_squares, query_kv: Σq² and Σq·k, proportional to the work of
    attention. padded_to: computed rows, requests and padding.
    """

    engine: str
    phase: str
    requests: int = -1
    decodes: int = -1
    query_tokens: int = -1
    kv_tokens: int = -1
    query_squares: int = -1
    query_kv: int = -1
    padded_to: int = -1

    def filled_by(self, other: ServerMark) -> ServerMark:
        """The same mark with what it leaves open as another mark of the same step says it."""
        left = {name: getattr(other, name) for name in self.__struct_fields__ if getattr(self, name) == -1}
        return replace(self, **left)


_NUMBER = r"\d{1,18}"
_SUMS = r"(?:\((?P<{0}>[\dsqk_]{{0,200}})\))?"
_VLLM = (
    # gpu_worker.py: execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(…); without the sums execute_context_1(888_788544)_generation_0(0);
    # before 0.14 execute_new_1_cached_31.
    expression(
        rf"execute_(?:{_NUMBER}_)?context_(?P<prefills>\d{{1,12}}){_SUMS.format('of_prefill')}_generation_(?P<decodes>\d{{1,12}}){_SUMS.format('of_decode')}"
    ),
    expression(r"execute_new_(?P<prefills>\d{1,12})_cached_(?P<decodes>\d{1,12})"),
)
# py_executor.py.
_TENSORRT_LLM = expression(
    r"\[Executor\] _forward_step(?: \d{1,12})?: (?P<prefills>\d{1,12}) ctx reqs,(?: (?P<tokens>\d{1,18}) ctx tokens,)? (?P<decodes>\d{1,12}) gen reqs"
)
_SUM = expression(rf"(sqsq|sqsk|sq|sk)({_NUMBER})")

# scheduler.py: step[DECODE bs=31], step[EXTEND bs=15 toks=15360]; with detailed annotations step[DECODE bs=2 g_sq=2 g_sqsq=2 g_sqsk=80 g_sk=80].
_SGLANG = expression(r"step\[(?P<mode>[A-Z][A-Z_0-9]{0,31})(?P<figures>(?: [\w-]{1,24}=\d{1,18}){0,16})\]")
IDLE_STEP = "step[IDLE]"
"""SGLang's mark of a step without requests."""
_FIGURE = expression(r"([\w-]{1,24})=(\d{1,18})")
_MODES = {"EXTEND": PREFILL, "DECODE": DECODE, "MIXED": MIXED, "TARGET_VERIFY": VERIFY, "DRAFT_EXTEND": DRAFT, "DRAFT_EXTEND_V2": DRAFT, "DRAFT_LOOP": DRAFT}

_BY_WORD = expression(r"(?<![a-z])(prefill|decode)(?![a-z])", re.IGNORECASE)


@lru_cache(maxsize=1 << 12)
def server_mark(name: str) -> ServerMark | None:
    """What a server's range says, None if a name is no server's."""
    for pattern in _VLLM:
        if found := pattern.fullmatch(name):
            return _of_vllm(found)
    if found := _TENSORRT_LLM.fullmatch(name):
        prefills, decodes = int(found["prefills"]), int(found["decodes"])
        tokens = 0 if not prefills else int(found["tokens"] or -1)
        return ServerMark(TENSORRT_LLM, _phase(prefills, decodes), prefills + decodes, decodes, tokens + decodes if tokens >= 0 else -1)
    if found := _SGLANG.fullmatch(name):
        return _of_sglang(found["mode"], {key: int(value) for key, value in _FIGURE.findall(found["figures"])})
    return None


def _phase(prefills: int, decodes: int) -> str:
    return MIXED if prefills and decodes else PREFILL if prefills else DECODE if decodes else "idle"


def _of_vllm(found: re.Match[str]) -> ServerMark:
    prefills, decodes = int(found["prefills"]), int(found["decodes"])
    groups = found.groupdict()
    sums = [_sums(groups.get("of_prefill") or "", prefills), _sums(groups.get("of_decode") or "", decodes)]
    told = {key: sum(part[key] for part in sums) if all(part[key] >= 0 for part in sums) else -1 for key in ("sq", "sk", "sqsq", "sqsk")}
    phase = _phase(prefills, decodes)
    # A request that decodes computes one token, and more where it verifies a draft.
    phase = VERIFY if phase == DECODE and told["sq"] > decodes else phase
    return ServerMark(VLLM, phase, prefills + decodes, decodes, told["sq"], told["sk"], told["sqsq"], told["sqsk"])


def _sums(text: str, requests: int) -> dict[str, int]:
    """Σq, Σk, Σq², Σq·k of the requests of one kind: of `sq32sk32785sqsq32sqsk32785`, of `888_788544`, which are the first and the third, or of `888`."""
    told = {key: int(value) for key, value in _SUM.findall(text)}
    if not told and text:
        told = dict(zip(("sq", "sqsq"), (int(part) for part in text.split("_") if part.isdecimal()), strict=False))
    return {key: told.get(key, -1 if requests else 0) for key in ("sq", "sk", "sqsq", "sqsk")}


def _of_sglang(mode: str, told: dict[str, int]) -> ServerMark:
    phase = _MODES.get(mode, mode.lower())
    requests = told.get("raw_bs", told.get("bs", -1))
    sums = {key: sum(values) if (values := [told[f"{kind}_{key}"] for kind in "cg" if f"{kind}_{key}" in told]) else -1 for key in ("sq", "sk", "sqsq", "sqsk")}
    tokens = told.get("toks", sums["sq"])
    if phase == DECODE and tokens < 0:
        tokens = requests
    decodes = {DECODE: requests, VERIFY: requests, PREFILL: 0}.get(phase, told.get("g", -1))
    padded = told.get("bs", -1) if "raw_bs" in told else -1
    return ServerMark(SGLANG, phase, requests, decodes, tokens, sums["sk"], sums["sqsq"], sums["sqsk"], padded)


def engine_of(names: Iterable[str]) -> str:
    """The server that wrote some of these names, "" if none. Some servers also write another's names inside their own; the outer server counts."""
    found = {mark.engine for name in names if (mark := server_mark(name))}
    return next((engine for engine in (SGLANG, TENSORRT_LLM, VLLM) if engine in found), "")


def server_step(name: str) -> str:
    """The kind of step that a server's range is, "" if it is no server's."""
    mark = server_mark(name)
    return mark.phase if mark else ""


def phase(name: str) -> str:
    """The kind of step that a range of anybody's names, "" if it names none or both."""
    if kind := server_step(name):
        return kind
    words = {word.lower() for word in _BY_WORD.findall(name)}
    return words.pop() if len(words) == 1 else ""


A_BLOCK_A_ROW = expression(r"rms_?norm|layer_?norm|reshape_and_cache|store_kv_?cache|(act|silu|gelu)_and_mul|set_(mla_)?kv_buffer", re.IGNORECASE)
"""Server kernels that launch a block per row of a step (vLLM's csrc/, FlashInfer's norm.cuh, torch's layer_norm_kernel.cu), including padding rows;
norms of several heads launch a block per head and row.
"""
