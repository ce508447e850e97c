"""What inference servers are told, by engine and phase, in options of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.2."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.knowledge.server_marks import DECODE, DRAFT, SGLANG, TENSORRT_LLM, VERIFY, VLLM
from advisor.report.finding import Code, Fix, StackOption

_URLS = {
    VLLM: "https://docs.vllm.ai/en/latest/design/cuda_graphs.html",
    SGLANG: "https://docs.sglang.ai/advanced_features/server_arguments.html",
    TENSORRT_LLM: "https://nvidia.github.io/TensorRT-LLM/",
}
_SERVE = {VLLM: "vllm serve MODEL", SGLANG: "python -m sglang.launch_server --model-path MODEL"}
_RISK = "Capturing takes time at the start, and memory for each captured size."

GENERATES = (DECODE, VERIFY, DRAFT)
"""Phases in which each request computes as many tokens, and whose whole step a graph holds."""


def _captured_for(rows: int, multiple: int = 8) -> int:
    """The size that engines capture for so many rows: multiples of eight, and smaller ones as they are."""
    return rows if rows <= multiple else -(-rows // multiple) * multiple


def graphs_of(engine: str, phase: str, rows: int, captured: Sequence[int], pieces: bool) -> Fix | None:
    """How to replay steps of a phase from graphs. rows: of the largest step outside graphs: tokens of prefill, requests otherwise. captured: sizes of the
    phase's graphs. pieces: graphs hold parts of a step, with attention between. None for engines with unknown options.
    """
    size = _captured_for(rows)
    if phase in GENERATES:
        return _of_decode(engine, rows, size, captured, pieces)
    if engine == VLLM:
        above = f"Raise max_cudagraph_capture_size: by default vLLM captures min(2 * max_num_seqs, 512) tokens at most, and a step of {rows:,} runs eagerly."
        between = "Graphs of prefill steps hold the ops between their attention."
        return _switched(
            engine, f"Capture steps of up to {size:,} tokens", ("Leave --enforce-eager off.", f"{above} {between}"), "--max-cudagraph-capture-size", str(size)
        )
    if engine == SGLANG:
        chosen = (
            "Choose a backend for graphs of prefill: breakable backends leave attention outside, and not every model and attention backend can be captured."
        )
        return _switched(engine, "Capture the steps that take prompts in", (chosen,), "--cuda-graph-backend-prefill", "breakable")
    return None


def _of_decode(engine: str, rows: int, size: int, captured: Sequence[int], pieces: bool) -> Fix | None:
    seen = f", as the largest seen in a graph is {max(captured):,}" if captured else ""
    least = f"Capture a size of {size:,} or more: a batch of {rows:,} runs eagerly{seen}."
    title = "Replay whole decode steps from a single graph" if pieces else f"Capture decode steps of {rows:,} requests"
    if engine == VLLM and pieces:
        mode = "Choose a mode that captures whole decode steps (FULL_AND_PIECEWISE, FULL_DECODE_ONLY). The attention backend must support it: vLLM reports at its start if it does not."
        return _switched(engine, title, (mode,), "--compilation-config", """'{"cudagraph_mode": "FULL_AND_PIECEWISE"}'""")
    if engine == VLLM:
        return _switched(engine, title, ("Leave --enforce-eager off.", least), "--max-cudagraph-capture-size", str(size))
    if engine == SGLANG and pieces:
        return _switched(engine, title, ("Leave decode's graphs on, with the backend full.",), "--cuda-graph-backend-decode", "full")
    if engine == SGLANG:
        return _switched(engine, title, ("Leave decode's graphs on (no --disable-decode-cuda-graph).", least), "--cuda-graph-max-bs-decode", str(size))
    if engine == TENSORRT_LLM and not pieces:
        steps = (least, "With padding on, a batch between two captured sizes runs in the larger.")
        return _configured(title, steps, "max_batch_size", str(size))
    return None


def sizes_of(engine: str, phase: str, rows: Sequence[int], captured: Sequence[int]) -> Fix | None:
    """How a step's graph gets no more rows than it needs. rows: that steps have; captured: rows of the graphs that they ran in."""
    # What is captured by default stays, up to the largest that is needed.
    wanted = sorted({*rows, *captured, *(2**k for k in range(max(captured).bit_length()))})
    title = f"Capture {_joined_by_and(rows)} row{'' if list(rows) == [1] else 's'} as well"
    steps = (
        f"Add the sizes that occur to the captured sizes: {_joined_by_and(rows)}, in addition to {_joined_by_and(captured)}. A batch runs in the next larger size.",
    )
    if engine == TENSORRT_LLM:
        return _configured(title, steps, "batch_sizes", f"[{', '.join(map(str, wanted))}]") if phase in GENERATES else None
    options = {VLLM: "--cudagraph-capture-sizes", SGLANG: "--cuda-graph-bs-decode" if phase in GENERATES else "--cuda-graph-bs-prefill"}
    return _switched(engine, title, steps, options[engine], " ".join(map(str, wanted))) if engine in options else None


def _switched(engine: str, title: str, steps: tuple[str, ...], option: str, value: str) -> Fix:
    """An option of a server's command line."""
    code = Code(before=_SERVE[engine], after=f"{_SERVE[engine]} {option} {value}")
    return Fix(title=title, steps=steps, code=code, url=_URLS[engine], risk=_RISK, stack=StackOption(engine, "", option))


def _configured(title: str, steps: tuple[str, ...], option: str, value: str) -> Fix:
    """A field of TensorRT-LLM's configuration of graphs."""
    before = "cuda_graph_config:\n  enable_padding: true"
    code, url = Code(before=before, after=f"{before}\n  {option}: {value}"), _URLS[TENSORRT_LLM]
    return Fix(title=title, steps=steps, code=code, url=url, risk=_RISK, stack=StackOption(TENSORRT_LLM, "", f"CudaGraphConfig.{option}"))


def _joined_by_and(sizes: Sequence[int]) -> str:
    *some, last = (f"{size:,}" for size in sorted(sizes))
    return f"{', '.join(some)} and {last}" if some else last
