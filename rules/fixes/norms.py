"""One call for a norm or a softmax that is written out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.report.finding import Code, Fix
from advisor.views.patterns.norms import Chain

_CODE = {
    "LayerNorm": Code(
        before="mean = x.mean(-1, keepdim=True)\nvar = (x - mean).pow(2).mean(-1, keepdim=True)\ny = (x - mean) / torch.sqrt(var + eps) * weight + bias",
        after="y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)",
    ),
    "RMSNorm": Code(
        before="h = x.float()\ny = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight",
        after="y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)",
    ),
    "softmax": Code(
        before="e = torch.exp(x - x.amax(-1, keepdim=True))\ny = e / e.sum(-1, keepdim=True)",
        after="y = torch.softmax(x, dim=-1)",
    ),
    "log-softmax": Code(
        before="log_p = torch.log(torch.softmax(x, -1))\nloss = -log_p.gather(-1, target[:, None]).mean()",
        after="loss = torch.nn.functional.cross_entropy(x, target)",
    ),
}


_ONE_TYPE = "y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)"


_COMPILED = "@torch.compile\ndef norm(x, weight):\n    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)"


_URL = {
    "LayerNorm": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html",
    "RMSNorm": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html",
    "softmax": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html",
    "log-softmax": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html",
}


def call_the_norm(kinds: list[str], rms_norms: Sequence[Chain]) -> Fix:
    inside, mixed = bool(rms_norms) and all(c.inside for c in rms_norms), any(c.mixed for c in rms_norms)
    steps = [f"Replace the unfused {kind} by the fused op." for kind in kinds if not (kind == "RMSNorm" and inside)]
    code = _CODE[kinds[0]]
    if rms_norms:
        steps.append(
            "torch.nn.functional.rms_norm is a single kernel from PyTorch 2.9 on, if its weight has x's dtype. Otherwise it runs these same kernels inside: "
            + ("cast the weight, or compile the module that holds it." if mixed else "update PyTorch, or compile the module that holds it.")
        )
    if kinds[0] == "RMSNorm" and inside:
        code = Code(before=code.after, after=_ONE_TYPE if mixed else _COMPILED)
    elif kinds[0] == "RMSNorm" and mixed:
        code = msgspec.structs.replace(code, after=_ONE_TYPE)
        steps.append("With a weight wider than x, the casts around the op remain, as this estimate expects; cast the weight to remove them too.")
    steps.append("If the formula differs from the op's, put torch.compile on the function: Inductor fuses the reduction as well.")
    return Fix(
        title=f"Call the fused {kinds[0]}",
        steps=tuple(steps),
        code=code,
        url=_URL[kinds[0]],
        holds_for=("torch",),
        risk="The fused op keeps statistics in FP32 and rounds once, so the last bits differ. Check the position of the epsilon.",
    )
