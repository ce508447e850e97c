"""A small inference engine: paged cache of keys and values, continuous batching, CUDA graphs for some batch sizes, tensor parallelism.

It runs a decoder with random weights, so that what it generates means nothing and what it costs is real. Its steps carry the marks of vLLM or of SGLang.

    python samples/serving/engine.py --requests 9 --captured 8,16        (a GPU)
    python samples/serving/engine.py --tiny --device cpu                 (none: shows that it runs)
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from kernels import add_rms_norm, attention, paged_attention, rotate_and_store, silu_and_mul, slots_of
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

PAGE = 16
"""Tokens of a page of the cache."""


@dataclass(frozen=True)
class Shape:
    """A decoder in the style of Llama."""

    layers: int = 16
    hidden: int = 2048
    heads: int = 16
    kv: int = 8
    width: int = 128
    inner: int = 6144
    words: int = 32_000


TINY = Shape(2, 64, 4, 2, 16, 128, 96)


@dataclass(frozen=True)
class Options:
    """captured: batch sizes of which a CUDA graph of a decode step is captured; a batch runs in the next larger, or eagerly where there is none.
    piecewise: attention stays outside of the graphs. chunk: tokens of a step that decodes and takes a part of a prompt too; 0: a whole prompt is a step by
    itself. read: when the host reads a step's tokens: one request after the other, all at once, or once the next step is launched. whole_texts: texts
    are made anew from all of their tokens after each step. capture_traces: a directory for a trace of each capture, "" for none."""

    captured: tuple[int, ...] = ()
    piecewise: bool = False
    chunk: int = 0
    read: Literal["each", "together", "later"] = "together"
    whole_texts: bool = False
    marks: Literal["vllm", "sglang"] = "vllm"
    capture_traces: str = ""


@dataclass(eq=False)
class Request:
    prompt: list[int]
    most: int
    tokens: list[int] = field(default_factory=list)
    """What it generated."""
    done: int = 0
    """Tokens whose keys and values are in the cache."""
    launched: int = 0
    """Tokens that were generated or are being."""
    pages: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def prefilled(self) -> bool:
        return self.done >= len(self.prompt)


@dataclass(frozen=True)
class Part:
    """So many tokens of a request, from the first whose keys are not in the cache."""

    request: Request
    count: int
    decodes: bool

    @property
    def keys(self) -> int:
        return self.request.done + self.count


class Projection(torch.nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class QKVProjection(Projection): ...


class OutputProjection(Projection): ...


class GateUpProjection(Projection): ...


class DownProjection(Projection): ...


class Head(Projection): ...


class Model:
    """The weights of one rank of several that share each layer."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype, ranks: int = 1) -> None:
        self.shape, self.ranks = shape, ranks
        self.heads, self.kv, self.inner = shape.heads // ranks, shape.kv // ranks, shape.inner // ranks
        make = torch.Generator(device).manual_seed(0)

        def weight(out: int, into: int) -> Tensor:
            return torch.randn(out, into, generator=make, device=device, dtype=dtype) * into**-0.5

        self.embedding = weight(shape.words, shape.hidden)
        self.head = Head(weight(shape.words, shape.hidden))
        self.norm = torch.ones(shape.hidden, device=device, dtype=dtype)
        self.layers = [
            (
                QKVProjection(weight((self.heads + 2 * self.kv) * shape.width, shape.hidden)),
                OutputProjection(weight(shape.hidden, self.heads * shape.width)),
                GateUpProjection(weight(2 * self.inner, shape.hidden)),
                DownProjection(weight(shape.hidden, self.inner)),
            )
            for _ in range(shape.layers)
        ]

    def begin(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states and residual of a step's first layer."""
        x = self.embedding[tokens]
        return x, torch.zeros_like(x)

    def before(self, layer: int, x: Tensor, residual: Tensor) -> Tensor:
        """Queries, keys and values (rows, heads + 2 kv, width)."""
        return self.layers[layer][0](add_rms_norm(x, residual, self.norm)).view(len(x), -1, self.shape.width)

    def after(self, layer: int, mixed: Tensor, residual: Tensor) -> Tensor:
        """What a layer adds, of what its attention made."""
        _, out, up, down = self.layers[layer]
        x = self.summed(out(mixed.reshape(len(mixed), -1)))
        return self.summed(down(silu_and_mul(up(add_rms_norm(x, residual, self.norm)))))

    def summed(self, x: Tensor) -> Tensor:
        if self.ranks > 1:
            dist.all_reduce(x)
        return x

    def end(self, x: Tensor, residual: Tensor) -> Tensor:
        """The likeliest next token of each row."""
        return self.head(add_rms_norm(x, residual, self.norm)).argmax(1)


Attend = Callable[[int, Tensor], Tensor]
"""Of a layer, with its queries, keys and values."""


class Engine:
    def __init__(self, model: Model, options: Options, requests: int = 64, tokens: int = 2048) -> None:
        """requests: that run at once, at most; tokens: of each, prompt and answer, at most."""
        self.model, self.options = model, options
        device, dtype = model.norm.device, model.norm.dtype
        self.device = device
        most_pages = -(-tokens // PAGE)
        # The last page takes what rows of padding write.
        self.free = deque(range(requests * most_pages))
        slots = (requests * most_pages + 1) * PAGE
        self.cache = [tuple(torch.zeros(slots, model.kv, model.shape.width, device=device, dtype=dtype) for _ in range(2)) for _ in model.layers]
        # What a decode step reads: of each request its token, position, slot and length, and its pages.
        self.inputs = torch.zeros(requests, 4 + most_pages, device=device, dtype=torch.int32)
        self.next = torch.zeros(requests, device=device, dtype=torch.int64)
        self.staged = [torch.zeros(requests, 4 + most_pages, dtype=torch.int32, pin_memory=device.type == "cuda") for _ in range(2)]
        self.answers = [torch.zeros(requests, dtype=torch.int64, pin_memory=device.type == "cuda") for _ in range(2)]
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.unread: tuple[list[Request], Tensor, torch.cuda.Event] | None = None
        self.steps = 0
        self.words = [f"w{n}" for n in range(model.shape.words)]
        self.graphs = {size: self._captured(size) for size in sorted(options.captured, reverse=True)} if device.type == "cuda" else {}

    # The model.

    def _rows(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = self.inputs[:size]
        return rows[:, 1].contiguous(), rows[:, 2].contiguous(), rows[:, 3].contiguous(), rows[:, 4:].contiguous()

    def _decode(self, size: int) -> Tensor:
        positions, slots, lengths, tables = self._rows(size)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            query = rotate_and_store(qkv, positions, slots, self.cache[layer], self.model.heads, self.model.kv)
            return paged_attention(query, self.cache[layer], tables, lengths, PAGE)

        return self._forward(self.inputs[:size, 0].long(), attend)

    def _forward(self, tokens: Tensor, attend: Attend) -> Tensor:
        x, residual = self.model.begin(tokens)
        for layer in range(len(self.cache)):
            x = self.model.after(layer, attend(layer, self.model.before(layer, x, residual)), residual)
        return self.model.end(x, residual)

    def _captured(self, size: int) -> Callable[[], None]:
        """Replays a decode step of so many rows."""
        self.inputs[:, 2], self.inputs[:, 3] = len(self.cache[0][0]) - 1, 1
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self._decode(size)  # compiles what is compiled at the first call
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with self._capture_traced(size):
            return self._pieces(size) if self.options.piecewise else self._whole(size)

    @contextmanager
    def _capture_traced(self, size: int) -> Iterator[None]:
        """A trace of the capture, named as SGLang names its file and vLLM its range."""
        if not self.options.capture_traces:
            yield
            return
        folder = Path(self.options.capture_traces)
        folder.mkdir(parents=True, exist_ok=True)
        rank = dist.get_rank() if self.model.ranks > 1 else 0
        label = f"capture_{size}_{'PIECEWISE' if self.options.piecewise else 'FULL'}"
        recorder = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True, with_stack=True)
        with recorder as prof, record_function(label):
            yield
        prof.export_chrome_trace(str(folder / f"bs_{size}_rank{rank}.json.gz"))

    def _whole(self, size: int) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.next[:size] = self._decode(size)
        return graph.replay

    def _pieces(self, size: int) -> Callable[[], None]:
        """Graphs of what is between the attention of one layer and of the next."""
        model, pieces = self.model, []
        mixed = torch.zeros(size, model.heads, model.shape.width, device=self.device, dtype=model.norm.dtype)
        made: dict[str, Tensor] = {}

        def piece(work: Callable[[], None]) -> None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            pieces.append((graph, made.get("qkv")))

        def first() -> None:
            made["x"], made["residual"] = model.begin(self.inputs[:size, 0].long())
            made["qkv"] = model.before(0, made["x"], made["residual"])

        def between(layer: int) -> None:
            made["x"] = model.after(layer, mixed, made["residual"])
            made["qkv"] = model.before(layer + 1, made["x"], made["residual"])

        def last() -> None:
            self.next[:size] = model.end(model.after(len(self.cache) - 1, mixed, made["residual"]), made["residual"])

        piece(first)
        for layer in range(len(self.cache) - 1):
            piece(lambda layer=layer: between(layer))
        piece(last)

        def replay() -> None:
            positions, slots, lengths, tables = self._rows(size)
            for layer, (graph, qkv) in enumerate(pieces[:-1]):
                graph.replay()
                query = rotate_and_store(qkv, positions, slots, self.cache[layer], model.heads, model.kv)
                mixed.copy_(paged_attention(query, self.cache[layer], tables, lengths, PAGE))
            pieces[-1][0].replay()

        return replay

    # The schedule.

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def begun(self, request: Request) -> None:
        """A request whose prompt is taken to be in the cache."""
        request.tokens.append(0)
        request.done, request.launched = len(request.prompt), 1
        self._with_pages(request, len(request.prompt))
        self.running.append(request)

    def clear(self) -> None:
        self._read()
        for request in self.running:
            self.free.extend(request.pages)
        self.running, self.steps = [], 0
        self.waiting.clear()

    def _with_pages(self, request: Request, tokens: int) -> None:
        while len(request.pages) * PAGE < tokens:
            request.pages.append(self.free.popleft())

    def _planned(self) -> list[Part]:
        """The parts of the next step: a prompt by itself before anything else, or with `chunk` all that decode and what they leave for prompts."""
        chunk = self.options.chunk
        decodes = [Part(request, 1, True) for request in self.running if request.prefilled and request.launched < request.most]
        prompt = next((request for request in self.running if not request.prefilled), None)
        if prompt is None and self.waiting:
            prompt = self.waiting.popleft()
            self.running.append(prompt)
        if prompt is None:
            return decodes
        left = len(prompt.prompt) - prompt.done
        return [*decodes, Part(prompt, min(left, max(chunk - len(decodes), 1)), False)] if chunk else [Part(prompt, left, False)]

    def step(self) -> bool:
        """Plan and launch a step, then take in what was generated; False where nothing was left to do."""
        parts = self._planned()
        if not parts:
            self._read()
            return False
        for part in parts:
            self._with_pages(part.request, part.keys)
        self.steps += 1
        decode = all(part.decodes for part in parts)
        with record_function(self._mark(parts)):
            made = self._launch_decode(parts) if decode else self._launch(parts)
        ends = [part.request for part in parts if part.decodes or part.keys >= len(part.request.prompt)]
        for part in parts:
            part.request.done += part.count
        for request in ends:
            request.launched += 1
        self._take(ends, made)
        return True

    def _mark(self, parts: Sequence[Part]) -> str:
        prompts, decodes = [part for part in parts if not part.decodes], [part for part in parts if part.decodes]
        if self.options.marks == "sglang":
            tokens = sum(part.count for part in parts)
            return f"step[DECODE bs={len(parts)}]" if not prompts else f"step[EXTEND bs={len(parts)} toks={tokens}]" if not decodes else f"step[MIXED bs={len(parts)}]"

        def sums(some: list[Part]) -> str:
            told = {"sq": 0, "sk": 0, "sqsq": 0, "sqsk": 0}
            for part in some:
                for key, value in (("sq", part.count), ("sk", part.keys), ("sqsq", part.count**2), ("sqsk", part.count * part.keys)):
                    told[key] += value
            return "".join(f"{key}{value}" for key, value in told.items())

        return f"execute_{sum(part.count for part in parts)}_context_{len(prompts)}({sums(prompts)})_generation_{len(decodes)}({sums(decodes)})"

    def _launch_decode(self, parts: Sequence[Part]) -> Tensor:
        count = len(parts)
        size = min((size for size in self.graphs if size >= count), default=0)
        requests = [part.request for part in parts]
        # The tokens of the step before may still be on the device alone, in the same rows.
        follows = self.unread is not None and self.unread[0] == requests
        if not follows:
            self._read()
        staged = self.staged[self.steps % 2]
        rows = max(size, count)
        filled = [[0 if follows else r.tokens[-1], r.done, r.pages[r.done // PAGE] * PAGE + r.done % PAGE, r.done + 1, *r.pages] for r in requests]
        width = max(len(row) for row in filled)
        staged[:count, :width] = torch.tensor([row + [0] * (width - len(row)) for row in filled], dtype=torch.int32)
        # Rows of padding have one key, and write theirs to the last page.
        staged[count:rows] = 0
        staged[count:rows, 2], staged[count:rows, 3] = len(self.cache[0][0]) - 1, 1
        first = 1 if follows else 0
        self.inputs[:rows, first:].copy_(staged[:rows, first:], non_blocking=True)
        if follows:
            self.inputs[:count, 0] = self.next[:count]
        if size:
            self.graphs[size]()
        else:
            self.next[:count] = self._decode(count)
        return self.next[:count]

    @property
    def _later(self) -> bool:
        return self.options.read == "later" and self.device.type == "cuda"

    def _launch(self, parts: Sequence[Part]) -> Tensor:
        """A step that takes prompts in, each with an attention of its own."""
        rows = [(part.request, at) for part in parts for at in range(part.request.done, part.keys)]
        known = {id(part.request): part.request.prompt + part.request.tokens for part in parts}
        tokens = torch.tensor([known[id(request)][at] for request, at in rows]).to(self.device)
        positions = torch.tensor([at for _, at in rows], dtype=torch.int32).to(self.device)
        slots = torch.tensor([request.pages[at // PAGE] * PAGE + at % PAGE for request, at in rows], dtype=torch.int32).to(self.device)
        # Those that decode come first, with one query each.
        decodes, prompts = ([part for part in parts if part.decodes == alone] for alone in (True, False))
        most = max((len(part.request.pages) for part in decodes), default=0)
        pages = torch.tensor([part.request.pages + [0] * (most - len(part.request.pages)) for part in decodes], dtype=torch.int32).to(self.device)
        lengths = torch.tensor([part.keys for part in decodes], dtype=torch.int32).to(self.device)
        tables = [slots_of(torch.tensor(part.request.pages).to(self.device), part.keys, PAGE) for part in prompts]

        def attend(layer: int, qkv: Tensor) -> Tensor:
            cache = self.cache[layer]
            query = rotate_and_store(qkv, positions, slots, cache, self.model.heads, self.model.kv)
            pieces = query.split([len(decodes), *(part.count for part in prompts)])
            mixed = [paged_attention(pieces[0], cache, pages, lengths, PAGE)] if decodes else []
            return torch.cat([*mixed, *(attention(q, *(half[table] for half in cache)) for q, table in zip(pieces[1:], tables, strict=True))])

        last = torch.tensor([part.count for part in parts]).cumsum(0) - 1
        ends = [bool(part.decodes or part.keys >= len(part.request.prompt)) for part in parts]
        return self._forward(tokens, attend)[last[torch.tensor(ends)].to(self.device)]

    # The answers.

    def _take(self, requests: list[Request], made: Tensor) -> None:
        if self._later:
            before, self.unread = self.unread, None
            answer = self.answers[self.steps % 2][: len(requests)]
            answer.copy_(made, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            if before:
                self._told(*before)
            self.unread = (requests, answer, event)
            return
        tokens = [int(token) for token in made] if self.options.read == "each" else made.tolist()
        self._answered(requests, tokens)

    def _read(self) -> None:
        """Take in what is still on its way."""
        if self.unread:
            self._told(*self.unread)
            self.unread = None

    def _told(self, requests: list[Request], answer: Tensor, event: torch.cuda.Event) -> None:
        event.synchronize()
        self._answered(requests, answer.tolist())

    def _answered(self, requests: list[Request], tokens: list[int]) -> None:
        for request, token in zip(requests, tokens, strict=True):
            request.tokens.append(token)
            request.text = " ".join(self.words[one] for one in (*request.prompt, *request.tokens)) if self.options.whole_texts else f"{request.text} {self.words[token]}"
        for request in [request for request in requests if len(request.tokens) >= request.most]:
            self.running.remove(request)
            self.free.extend(request.pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--captured", default="", help="batch sizes, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    model = Model(TINY if args.tiny else Shape(), device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    engine = Engine(model, Options(captured=tuple(int(size) for size in args.captured.split(",") if size)))
    requests = [Request([(7 * n + k) % model.shape.words for k in range(20 + n)], 16) for n in range(args.requests)]
    for request in requests:
        engine.add(request)
    start = time.perf_counter()
    with torch.inference_mode():
        while engine.step():
            pass
    print(f"{sum(len(request.tokens) for request in requests)} tokens in {time.perf_counter() - start:.2f} s, {engine.steps} steps")


if __name__ == "__main__":
    main()
