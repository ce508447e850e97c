"""Kernel names as different tools print them. CUPTI, Kineto and Nsight Compute's CSV pages write the same function with different blanks, casts,
namespaces and lambdas.
"""

from __future__ import annotations

import re
from functools import lru_cache

from advisor.knowledge.expressions import expression

_UNNAMED = expression(r"\(anonymous namespace\)::|<?unnamed>::")
_INSTANCE = expression(r"\(instance (\d+)\)")
_PARENS = expression(r"\([^()]*\)")
_RETURNS = expression(r"\bvoid\s+(?=[\w<])")
_QUALIFIER = expression(r"\b\w+::")
_LITERAL = expression(r"\b(\d+)[ul]+\b", re.IGNORECASE)
_BRACKETS = str.maketrans("[]", "{}")


def plain_name(name: str) -> str:
    """A kernel's demangled name without return type and parameters: `void f<int>(float*)` is `f<int>`."""
    name = name.removeprefix("void ").strip()
    end = name.removesuffix("const").rstrip()
    if not end.endswith(")"):
        return name
    depth = 0
    for at in range(len(end) - 1, -1, -1):
        depth += (end[at] == ")") - (end[at] == "(")
        if depth == 0:
            return end[:at].rstrip() or name
    return name


@lru_cache(maxsize=1 << 14)
def same_name(name: str) -> str:
    """What all spellings of a kernel's name come to: no parameters, namespaces, casts, `const` or blanks.

    `void at::native::k<(int)4, <unnamed>::f(T1 &)::[lambda(float) (instance 2)]>(int)` is `k<4,f{lambda#2}>`, and so is
    `void at::native::k<4, at::native::(anonymous namespace)::f(float&)::{lambda(float)#2}>(int)`.
    """
    text = _INSTANCE.sub(r"#\1", _UNNAMED.sub("", plain_name(_UNNAMED.sub("", name))))
    while (shorter := _PARENS.sub("", text)) != text:
        text = shorter
    text = re.sub(r"::(?=[{\[])", "", _RETURNS.sub("", text))
    text = re.sub(r"\b(const|struct|class|enum)\b", "", _QUALIFIER.sub("", text))
    text = _LITERAL.sub(r"\1", re.sub(r"\bfalse\b", "0", re.sub(r"\btrue\b", "1", text)))
    return re.sub(r"\s+", "", text.translate(_BRACKETS))


def function_name(name: str) -> str:
    """`same_name` without template arguments."""
    return same_name(name).split("<", 1)[0]
