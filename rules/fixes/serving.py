"""What inference servers are told, by engine and phase, in options of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.2."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.knowledge.server_marks import DECODE, DRAFT, SGLANG, TENSORRT_LLM, VERIFY, VLLM
from advisor.report.finding import Code, Fix

_VLLM_URL = "https://docs.vllm.ai/en/latest/design/cuda_graphs.html"
_SGLANG_URL = "https://docs.sglang.ai/advanced_features/server_arguments.html"
_TENSORRT_URL = "https://nvidia.github.io/TensorRT-LLM/"
_SERVE = {VLLM: "vllm serve MODEL", SGLANG: "python -m sglang.launch_server --model-path MODEL"}
_RISK = "Capturing takes time at the start, and memory for each captured size."

GENERATES = (DECODE, VERIFY, DRAFT)
"""Phases in which each request computes as many tokens, and whose whole step a graph holds."""


def _captured_for(rows: int, multiple: int = 8) -> int:
    """The size that engines capture for so many rows: multiples of eight, and smaller ones as they are."""
    return rows if rows <= multiple else -(-rows // multiple) * multiple


def graphs_of(engine: str, phase: str, rows: int, captured: Sequence[int], pieces: bool) -> Fix | None:
    """How steps of a phase are replayed from graphs. rows: of the largest that is not, tokens of a step that takes prompts in and requests of others; captured: sizes that
    graphs of the phase were seen at; pieces: graphs hold parts of a step, attention between them. None of an engine whose options are not known."""
    size = _captured_for(rows)
    if phase in GENERATES:
        return _of_decode(engine, rows, size, captured, pieces)
    if engine == VLLM:
        return Fix(
            title=f"Capture steps of up to {size:,} tokens",
            steps=(
                "Leave --enforce-eager off.",
                f"Raise max_cudagraph_capture_size: by default vLLM captures min(2 * max_num_seqs, 512) tokens at most, and a step of {rows:,} runs eagerly. "
                "Graphs of steps that take prompts in hold what is between their attention.",
            ),
            code=Code(before=_SERVE[VLLM], after=f"{_SERVE[VLLM]} --max-cudagraph-capture-size {size}"),
            url=_VLLM_URL,
            risk=_RISK,
        )
    if engine == SGLANG:
        return Fix(
            title="Capture the steps that take prompts in",
            steps=("Choose a backend for graphs of prefill: breakable ones leave attention outside.",),
            code=Code(before=_SERVE[SGLANG], after=f"{_SERVE[SGLANG]} --cuda-graph-backend-prefill breakable"),
            url=_SGLANG_URL,
            risk=f"{_RISK} Some models and backends of attention cannot be captured in prefill.",
        )
    return None


def _of_decode(engine: str, rows: int, size: int, captured: Sequence[int], pieces: bool) -> Fix | None:
    least = (
        f"Capture a size of {size:,} or more: a batch of {rows:,} runs eagerly"
        + (f", as the largest seen in a graph is {max(captured):,}" if captured else "")
        + "."
    )
    title = "Replay whole decode steps from one graph" if pieces else f"Capture decode steps of {rows:,} requests"
    if engine == VLLM:
        if pieces:
            steps: tuple[str, ...] = (
                "Choose a mode that captures whole decode steps (FULL_AND_PIECEWISE, FULL_DECODE_ONLY); the backend of attention must support it, else vLLM falls back to pieces and says so at its start.",
            )
            option = """--compilation-config '{"cudagraph_mode": "FULL_AND_PIECEWISE"}'"""
        else:
            steps, option = ("Leave --enforce-eager off.", least), f"--max-cudagraph-capture-size {size}"
        return Fix(title=title, steps=steps, code=Code(before=_SERVE[VLLM], after=f"{_SERVE[VLLM]} {option}"), url=_VLLM_URL, risk=_RISK)
    if engine == SGLANG:
        steps = ("Leave decode's graphs on (no --disable-decode-cuda-graph), with the backend full.",) + (() if pieces else (least,))
        option = "--cuda-graph-backend-decode full" + ("" if pieces else f" --cuda-graph-max-bs-decode {size}")
        return Fix(title=title, steps=steps, code=Code(before=_SERVE[SGLANG], after=f"{_SERVE[SGLANG]} {option}"), url=_SGLANG_URL, risk=_RISK)
    if engine == TENSORRT_LLM and not pieces:
        return Fix(
            title=title,
            steps=(least, "With padding on, a batch between two captured sizes runs in the larger."),
            code=Code(before="cuda_graph_config: null", after=f"cuda_graph_config:\n  enable_padding: true\n  max_batch_size: {size}"),
            url=_TENSORRT_URL,
            risk=_RISK,
        )
    return None


def sizes_of(engine: str, phase: str, rows: Sequence[int], captured: Sequence[int]) -> Fix | None:
    """How a step's graph gets no more rows than it needs. rows: that steps have; captured: rows of the graphs that they ran in."""
    # What is captured by default stays, up to the largest that is needed.
    wanted = sorted({*rows, *captured, *(2**k for k in range(max(captured).bit_length()) if 2**k <= max(captured))})
    listed = " ".join(map(str, wanted))
    title = f"Capture {_and(rows)} row{'' if list(rows) == [1] else 's'} as well"
    steps = (f"Add the sizes that occur to those that are captured: {_and(rows)}, beside {_and(captured)}. A batch runs in the next larger size.",)
    if engine == VLLM:
        return Fix(
            title=title, steps=steps, code=Code(before=_SERVE[VLLM], after=f"{_SERVE[VLLM]} --cudagraph-capture-sizes {listed}"), url=_VLLM_URL, risk=_RISK
        )
    if engine == SGLANG:
        option = "--cuda-graph-bs-decode" if phase in GENERATES else "--cuda-graph-bs-prefill"
        return Fix(title=title, steps=steps, code=Code(before=_SERVE[SGLANG], after=f"{_SERVE[SGLANG]} {option} {listed}"), url=_SGLANG_URL, risk=_RISK)
    if engine == TENSORRT_LLM and phase in GENERATES:
        after = f"cuda_graph_config:\n  enable_padding: true\n  batch_sizes: [{', '.join(map(str, wanted))}]"
        return Fix(title=title, steps=steps, code=Code(before="cuda_graph_config:\n  enable_padding: true", after=after), url=_TENSORRT_URL, risk=_RISK)
    return None


def _and(sizes: Sequence[int]) -> str:
    *some, last = (f"{size:,}" for size in sorted(sizes))
    return f"{', '.join(some)} and {last}" if some else last
