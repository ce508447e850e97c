"""Kernel names as people say them: without return type, namespaces, template and arguments."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2s

from advisor.knowledge.expressions import expression

_NAMESPACES = expression(r"\(anonymous namespace\)::|<?unnamed>::|\b(?:at|c10|std|native|cuda|cub|thrust)::")
_WORD = expression(r"\b[A-Za-z_]\w{3,}\b(?!::)")
_SHELL = expression(r"(?i)(?:device_)?kernel2?$")
"""Says nothing: what runs is the template's argument."""
_GENERIC = expression(r"(?i)(?:elementwise_\w*kernel\w*|multi_tensor_apply_kernel|reduce_kernel|^foreach_\w*kernel)$")
"""Runs whatever function it is given: which one stands among the template's arguments."""
_PLUMBING = expression(
    r"(?i)(?:float|double|long|bool|char|void|half|bfloat16|__nv_\w+|u?int\d*_t|unsigned|const|array|tuple|type|false|true|lambda|operator|"
    r"[ab]unaryfunctor|binaryfunctor|gpu_kernel_\w+|tensoriterator\w*|\w*tensorlist\w*metadata|\w*offsetcalculator|loadwithoutcast|"
    r"storewithoutcast|func_wrapper_t|reduceop|opmath\w*|function)$"
)


def trace_id(path: str) -> str:
    """Tells pages of different traces apart without naming their folders."""
    return blake2s(os.fsencode(os.path.abspath(path)), digest_size=8).hexdigest()


@lru_cache(maxsize=65_536)
def short(name: str) -> str:
    """`void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(…)` is `cutlass_80_tensorop_s1688gemm`; an elementwise kernel is named
    with what it computes: `vectorized_elementwise_kernel GeluCUDAKernelImpl`. Names without a template stay as they are."""
    plain = _NAMESPACES.sub("", name.removeprefix("void "))
    cut = min((at for mark in "<(" if (at := plain.find(mark)) > 0), default=len(plain))
    base = plain[:cut].rpartition("::")[2]
    if cut == len(plain) or not base.isidentifier():
        return plain  # `Memcpy HtoD (Pageable -> Device)`
    if not (shell := bool(_SHELL.match(base))) and not _GENERIC.search(base):
        return base
    telling = next((word for word in _WORD.findall(plain, cut) if not _PLUMBING.match(word)), "")
    return telling if shell and telling else f"{base} {telling}".rstrip()
