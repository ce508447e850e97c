"""What to do about code that is compiled again and again."""

from __future__ import annotations

from advisor.knowledge.structs import replace
from advisor.report.compile_log import CompileCost
from advisor.report.finding import Code, Fix
from advisor.report.numbers import duration
from advisor.rules.fixes import known_fix
from advisor.views.patterns.compiling import changing_dimension
from advisor.views.trace.compilation import Recompilations

FEW_LENGTHS = known_fix("pytorch", "few-lengths")


def compile_once(why: Recompilations) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html"
    logs = "Run with TORCH_LOGS=recompiles: it names the guard that failed."
    if why.renewed:
        return Fix(
            title="Call torch.compile once, outside the loop",
            steps=(
                "Compile the function before the loop and keep the result: code made anew (exec, generated source) or torch._dynamo.reset() compiles again.",
                logs,
            ),
            code=Code(
                before="for batch in loader:\n    f = torch.compile(make_step(config))  # a function made anew\n    f(batch)",
                after="f = torch.compile(make_step(config))\nfor batch in loader:\n    f(batch)",
            ),
            url=url,
            risk="Results stay as they are.",
        )
    if why.varying:
        dimension = changing_dimension(why.varying) if all(v.startswith("[") for v in why.varying) else None
        marked = f"torch._dynamo.mark_dynamic(x, {dimension[0]})" if dimension else "torch._dynamo.mark_dynamic(x, dim)"
        return Fix(
            title="Compile once for all sizes",
            steps=(
                f"Compile with dynamic=True, or call {marked} on the input before the first call.",
                "Or pad inputs to a few sizes: each bucket compiles once and keeps fast static code.",
                logs,
            ),
            code=Code(
                before="model = torch.compile(model, dynamic=False)\nfor x in batches:  # a new shape each step\n    model(x)",
                after=f"model = torch.compile(model, dynamic=True)  # or, before the first call: {marked}\nfor x in batches:\n    model(x)",
            ),
            url=url,
            risk="Code for any size may be a few percent slower than code for a fixed size. CUDA graphs need a recording for each size.",
        )
    same = ("Shapes do not change in the trace, so a Python value does: turn numbers that change each step into tensors.",)
    either = ("Record with record_shapes=True; only if shapes change, compile with dynamic=True or pad to buckets.",)
    limit = (
        (f"{why.recompiled} recompilations of the same function exceed the default recompile_limit ({DEFAULT_LIMIT}): somebody raised it.",)
        if why.recompiled > DEFAULT_LIMIT
        else ()
    )
    return Fix(
        title="Find the guard that fails, and keep it from changing",
        steps=(logs, *(same if why.shapes else either), *limit),
        code=Code(
            before="class Loss(nn.Module):\n    def forward(self, x):\n        self.step += 1  # an int of a module: each value compiles again\n        return x * self.step",
            after='# in __init__: self.register_buffer("step", torch.zeros(()))\nclass Loss(nn.Module):\n    def forward(self, x):\n        self.step.add_(1)\n        return x * self.step',
        ),
        url=url,
        risk="Results stay as they are; a tensor on the GPU cannot steer Python branches.",
    )


def without_breaks(rows: list[CompileCost]) -> Fix:
    """rows: graph breaks, most expensive first."""
    return Fix(
        title="Mend the lines that break the graph, most expensive first",
        steps=(*_steps(rows), "torch.compile(fullgraph=True) then shows the first break that is left as an error."),
        url="https://docs.pytorch.org/docs/stable/compile/programming_model.graph_breaks_index.html",
        holds_for=("torch",),
        risk="torch.where computes both sides of a branch, and torch.cond compiles both: compare results once.",
    )


def at_logged_lines(fix: Fix, rows: list[CompileCost]) -> Fix:
    """The fix of recompilation with the functions that the log names; rows: most expensive first."""
    return replace(fix, steps=(*_steps(rows), *fix.steps)) if rows else fix


def _steps(rows: list[CompileCost]) -> list[str]:
    """Of the three that cost most; the report lists all."""
    return [_step(row) for row in rows[:3]]


def _step(row: CompileCost) -> str:
    price = duration((row.us if row.unprofiled_us is None else row.unprofiled_us) or 0.0)
    why = f" ({row.reason})" if row.reason else ""
    return f"{row.source.file}:{row.source.line}, {price} per step{why}: {row.instead}"


DEFAULT_LIMIT = 8
"""After this many recompilations of one function Dynamo gives up and runs it eagerly (torch._dynamo.config.recompile_limit)."""
