"""What to change so that torch.compile neither breaks a graph nor compiles again, by the reason that it logs."""

from __future__ import annotations

import re

_OF_BREAKS = (
    (r"Tensor\.item|_local_scalar_dense|\.tolist|capture_scalar_outputs", "Keep the number on the device as a tensor, or set torch._dynamo.config.capture_scalar_outputs = True."),
    (r"[Dd]ata-dependent|GetAttr.{0,40}bool|control flow", "Replace the branch on a tensor's value by torch.cond or an elementwise select."),
    (r"builtin.{0,60}print|\bprint\b|logg(?:er|ing)|warnings", "Move the output out of the compiled function, or name it in torch._dynamo.config.reorderable_logging_functions."),
    (r"nonzero|dynamic shape operator|data-dependent output shape|capture_dynamic_output_shape_ops", "Use an op with a fixed output shape, or set torch._dynamo.config.capture_dynamic_output_shape_ops = True."),
    (r"torch\._dynamo\.(?:graph_break|disable)|graph_break\(\)|disallow|skipfile|[Ff]orced", "Remove the call that breaks the graph, or move it before or after the compiled function."),
    (r"C\+\+|C function|builtin|extension|[Ll]ogger|Unsupported function call", "Register the call as an operator with torch.library.custom_op, or move it out of the compiled function."),
)  # fmt: skip
_OF_RECOMPILATIONS = (
    (r"\bself\b|nn\.Module|___check_obj|attr|_modules|\.training|__dict__", "Do not change attributes of the module in forward: keep the state in a buffer (a tensor), or change it outside the compiled code."),
    (r"size mismatch|shape|stride|Eq\(|\.size\(\)", "Mark the changing dimension with torch._dynamo.mark_dynamic, compile with dynamic=True, or pad to a few sizes."),
    (r"==|int|float|TYPE_MATCH|isinstance", "Pass the changing Python number as a tensor."),
    (r"grad_mode|grad mode|requires_grad", "Call the function under the same gradient mode each time."),
)  # fmt: skip


def instead_of_break(reason: str) -> str:
    """What to change for a graph break with this reason."""
    return (
        _first(_OF_BREAKS, reason)
        or "Move the unsupported code out of the compiled function. torch.compile(fullgraph=True) shows the first such line as an error."
    )


def instead_of_recompilation(reason: str) -> str:
    """What to change for a recompilation with this failed guard."""
    return _first(_OF_RECOMPILATIONS, reason) or "Keep the checked value the same from step to step. TORCH_LOGS=recompiles prints all failed guards."


def _first(table: tuple[tuple[str, str], ...], reason: str) -> str:
    return next((text for pattern, text in table if re.search(pattern, reason)), "")
