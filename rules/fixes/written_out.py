"""A single call for code that the program writes by hand, as a step of a fix or as its lead."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from advisor.report.finding import Code, Fix
from advisor.report.numbers import counted
from advisor.views.trace.spellings import Spellings

_DOCS = "https://docs.pytorch.org/docs/stable/generated/"


class Way(NamedTuple):
    """A single call for the idiom in the trace."""

    title: str
    step: str
    code: Code
    url: str


def _ways(seen: Spellings) -> list[Way]:
    found = []
    if seen.cell:
        module = {"lstm": "LSTM", "gru": "GRU"}.get(seen.cell, "RNN")
        state, relu = "(h, c)" if seen.cell == "lstm" else "h", ", nonlinearity='relu'" * (seen.cell == "rnn_relu")
        found.append(Way(
            f"Run the recurrence as a single nn.{module}",
            f"Replace the loop over the cell ({counted(seen.cells, 'call')} a step) by nn.{module}: a single call runs all time steps. "
            "Its parameters have a layer's number in their names (weight_ih_l0): rename a checkpoint's. An initial state has an additional first axis.",
            Code(
                before=f"for t in range(x.shape[1]):\n    {state.strip('()')} = cell(x[:, t], {state})",
                after=f"rnn = torch.nn.{module}(n_in, n_hidden, batch_first=True{relu})  # once\n\nout, {state} = rnn(x)",
            ),
            f"{_DOCS}torch.nn.{module}.html",
        ))  # fmt: skip
    if seen.grows:
        found.append(Way(
            "Keep the cache at a fixed size",
            f"A tensor grows by concatenation, from {seen.grows[0]} to {seen.grows[1]}. Allocate it once at its full length and write into it. "
            "Then nothing is copied and every step has the same shapes, which CUDA graphs need. Mask positions that are not filled yet.",
            Code(
                before="k = torch.cat([past_k, k], dim=2)\nv = torch.cat([past_v, v], dim=2)",
                after="cache_k[:, :, position : position + 1] = k  # (batch, heads, longest, size), made once\ncache_v[:, :, position : position + 1] = v\n"
                '# transformers: model.generate(..., cache_implementation="static")',
            ),
            "https://huggingface.co/docs/transformers/kv_cache#static-cache",
        ))  # fmt: skip
    if seen.picked >= 1:
        found.append(Way(
            "Call F.cross_entropy",
            "The loss takes a log-softmax and picks the target's value from it: torch.nn.functional.cross_entropy does both.",
            Code(
                before="log_p = logits.log_softmax(-1)\nloss = -log_p.gather(-1, target[..., None]).mean()",
                after="loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())",
            ),
            f"{_DOCS}torch.nn.functional.cross_entropy.html",
        ))  # fmt: skip
    return found


def spelt(fix: Fix, seen: Spellings, *wanted: str, leads: bool = True) -> Fix:
    """The fix, led by the single call for the idiom; `wanted` are the fields of Spellings for this finding. leads: whether that call brings most of the gain;
    otherwise it is a further step.
    """
    seen = Spellings(**{name: getattr(seen, name) for name in (*wanted, *(("cells",) if "cell" in wanted else ()))})
    ways = _ways(seen)
    if not (ways and leads):
        return msgspec.structs.replace(fix, steps=(*fix.steps, *(way.step for way in ways)))
    return Fix(title=ways[0].title, steps=(*(way.step for way in ways), *fix.steps), code=ways[0].code, url=ways[0].url, risk=fix.risk)
