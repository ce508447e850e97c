"""The purpose of an HLO instruction, if its body shows more than its kernel's name: `fusion_9` may be a softmax."""

from __future__ import annotations

import re

from advisor.knowledge.op_tokens.families import Family
from advisor.sources.jax.hlo import FIELD, Computation, text_of

_CALLS = (
    (Family.CONV, re.compile(r"\$conv")),
    (Family.ATTENTION, re.compile(r"fmha|attention|attn", re.IGNORECASE)),
    (Family.GEMM, re.compile(r"gemm|matmul", re.IGNORECASE)),
)
_PRODUCTS = {"dot": Family.GEMM, "ragged-dot": Family.GEMM, "convolution": Family.CONV}
_NOTHING = frozenset(("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "reshape"))
_TURNS = frozenset(("transpose", "copy"))


def family_of(home: Computation, at: int, called: list[Computation]) -> Family | None:
    """The family of the instruction at a position; None if its kernel's name shows as much."""
    parts = home.parts(at)
    opcode = text_of(parts, FIELD.opcode)
    if opcode == "custom-call":
        target = text_of(parts, FIELD.custom_call_target)
        return next((family for family, pattern in _CALLS if pattern.search(target)), None)
    if opcode != "fusion" or not called:
        return Family.LAYOUT if opcode == "transpose" else _PRODUCTS.get(opcode)
    return called[0].cached_answer(_of_body)


def _of_body(body: Computation) -> Family | None:
    opcodes = [text_of(body.parts(i), FIELD.opcode) for i in range(len(body.names))]
    if product := next((_PRODUCTS[o] for o in opcodes if o in _PRODUCTS), None):
        return product
    doing = set(opcodes) - _NOTHING
    if doing and doing <= _TURNS:
        return Family.LAYOUT if "transpose" in doing else Family.COPY
    return Family.SOFTMAX if _exponential_of_differences(body, opcodes) else None


def _exponential_of_differences(body: Computation, opcodes: list[str]) -> bool:
    """Whether exponentials are computed of an array minus a smaller array, its maxima."""
    for i in (i for i, opcode in enumerate(opcodes) if opcode == "exponential"):
        for difference in (place for place in body.taken(body.parts(i)) if opcodes[place] == "subtract"):
            for spread in (place for place in body.taken(body.parts(difference))[1:] if opcodes[place] == "broadcast"):
                small, large = body.operands(body.parts(spread)), body.results(spread)
                if small and large and 1 < small[0].elements < large[0].elements:
                    return True
    return False
