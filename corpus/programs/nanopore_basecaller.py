"""Basecalling of nanopore reads: electric current in, letters of DNA out.

The network is that of Bonito's "hac" models: three convolutions that take every fifth sample, five LSTMs that run backwards and forwards by
turns, and a linear layer that scores the transitions of a CRF whose states are the last four bases. Reads are normalised, cut into chunks
that overlap, and chunks of several reads fill a batch. The best path of each chunk is found with Viterbi: the forward pass on the GPU,
the way back in numpy. Once all chunks of a read are there, they are trimmed and joined, and the read is given out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, advised, capture

STRIDE = 5
BASES = 4


@dataclass
class Read:
    name: str
    signal: np.ndarray  # int16, as the device gives it
    offset: float
    scale: float


@dataclass
class Pending:
    """A read whose chunks are not all called yet."""

    starts: list[int]
    length: int
    pieces: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


def sequencer(rng: np.random.Generator, count: int, mean_bases: int) -> list[Read]:
    """Made-up reads: a level for each 6-mer, a random dwell for each base, noise and a slow drift."""
    levels = rng.normal(90, 18, BASES**6)
    reads = []
    for number in range(count):
        bases = rng.integers(0, BASES, int(np.clip(rng.lognormal(np.log(mean_bases), 0.6), 200, 8 * mean_bases)))
        kmers = np.convolve(bases, BASES ** np.arange(6), mode="valid")
        current = np.repeat(levels[kmers], rng.geometric(1 / 12, len(kmers)))
        current = current + rng.normal(0, 2.5, len(current)) + np.linspace(0, rng.normal(0, 4), len(current))
        offset, scale = float(rng.normal(-240, 8)), 0.175
        reads.append(Read(f"read_{number:05d}", (current / scale + offset).astype(np.int16), offset, scale))
    return reads


def normalise(read: Read) -> Tensor:
    """Picoamperes, less their median, over their median deviation."""
    current = torch.from_numpy((read.scale * (read.signal.astype(np.float32) - read.offset)).astype(np.float32))
    median = current.median()
    deviation = (current - median).abs().median() * 1.4826 + 1e-9
    return (current - median) / deviation


def chunk_starts(length: int, size: int, overlap: int) -> list[int]:
    """Where chunks start. The last one ends with the read."""
    if length <= size:
        return [0]
    starts = list(range(0, length - size, size - overlap))
    return [*starts, (length - size) // STRIDE * STRIDE]


class Lstm(nn.Module):
    def __init__(self, size: int, reverse: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(size, size)
        self.reverse = reverse
        for name, weight in self.rnn.named_parameters():  # large enough for the signal to reach the end, in place of trained weights
            if name.startswith("weight"):
                nn.init.orthogonal_(weight, gain=8.0 if "_ih_" in name else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.reverse:
            x = x.flip(0)
        x, _ = self.rnn(x)
        return x.flip(0) if self.reverse else x


class Basecaller(nn.Module):
    def __init__(self, features: int, state_length: int, layers: int = 5, scale: float = 5.0) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(1, 4, 5, padding=2),
            nn.SiLU(),
            nn.Conv1d(4, 16, 5, padding=2),
            nn.SiLU(),
            nn.Conv1d(16, features, 19, stride=STRIDE, padding=9),
            nn.SiLU(),
        )
        self.rnns = nn.Sequential(*(Lstm(features, reverse=number % 2 == 0) for number in range(layers)))
        self.states = BASES**state_length
        self.scores = nn.Linear(features, self.states * (BASES + 1))
        self.scale = scale
        for layer in (*self.convolutions[::2], self.scores):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, chunks: Tensor) -> Tensor:
        """Chunks (N, 1, samples) to scores (T, N, states, 5): to stay, or to come from each of the four states before."""
        x = self.convolutions(chunks).permute(2, 0, 1)
        x = self.rnns(x)
        return (torch.tanh(self.scores(x)) * self.scale).unflatten(-1, (self.states, BASES + 1))


class Viterbi:
    """Best paths through the CRF. A state is the last bases as a number, the newest last."""

    def __init__(self, states: int, device: torch.device) -> None:
        number = np.arange(states)
        before = [number, *(base * (states // BASES) + number // BASES for base in range(BASES))]
        self.before = np.stack(before, axis=1)  # (states, 5)
        self.index = torch.from_numpy(self.before).to(device)

    def forward_pass(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where each state is best reached from (T, N, states), and the score and last state of each best path."""
        steps, count, states, _ = scores.shape
        alpha = torch.zeros(count, states, device=scores.device)
        back = torch.empty(steps, count, states, dtype=torch.uint8, device=scores.device)
        for t in range(steps):
            alpha, choice = (scores[t] + alpha[:, self.index]).max(dim=-1)
            back[t] = choice
        best, last = alpha.max(dim=-1)
        return back, best, last

    def way_back(self, choices: np.ndarray, state: np.ndarray, best: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bases and moves, both (N, T), and the mean score of each path."""
        steps, count, _ = choices.shape
        rows = np.arange(count)
        bases, moves = np.empty((count, steps), np.uint8), np.empty((count, steps), bool)
        for t in range(steps - 1, -1, -1):
            choice = choices[t, rows, state]
            bases[:, t], moves[:, t] = state % BASES, choice > 0
            state = self.before[state, choice]
        return bases, moves, best.cpu().numpy() / steps

    def __call__(self, scores: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        back, best, last = self.forward_pass(scores)
        return self.way_back(back.cpu().numpy(), last.cpu().numpy(), best)


class Graphed:
    """Chunks (N, 1, samples) to what Viterbi's forward pass gives, as one CUDA graph; one pass of its loop is a compiled function."""

    def __init__(self, model: Basecaller, viterbi: Viterbi, shape: tuple[int, ...], dtype: torch.dtype, s: Setup) -> None:
        self.signals = torch.zeros(shape, dtype=dtype, device=s.device)
        self.given: tuple[Tensor, ...] = ()
        one_pass = s.compile(viterbi_pass, fullgraph=True)

        def run() -> None:
            scores = model(self.signals).float()
            steps, count, states, _ = scores.shape
            alpha = torch.zeros(count, states, device=scores.device)
            choices = []
            for t in range(steps):
                alpha, choice = one_pass(scores[t], alpha, viterbi.index)
                choices.append(choice)
            self.given = (torch.stack(choices), *alpha.max(dim=-1))

        with torch.inference_mode():
            self.replay = capture(run, s)

    def __call__(self, signals: Tensor) -> tuple[Tensor, ...]:
        """The tensors that it returns are overwritten by the next call."""
        self.signals.copy_(signals)
        self.replay()
        return self.given


def viterbi_pass(scores: Tensor, alpha: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    alpha, choice = (scores + alpha[:, index]).max(dim=-1)
    return alpha, choice.to(torch.uint8)


class CopyAhead:
    """Copies from pinned memory on a stream of its own. Two buffers take turns: by the time one is filled again, the host has waited for
    the results of the batch that was in it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, s: Setup) -> None:
        self.hosts = [s.pin(torch.zeros(shape, dtype=dtype)) for _ in range(2)]
        self.stream = torch.cuda.Stream() if s.cuda else None
        self.device, self.turn = s.device, 0

    def fetch(self, signals: Tensor) -> Tensor:
        host = self.hosts[self.turn % 2]
        self.turn += 1
        host.copy_(signals)
        with torch.cuda.stream(self.stream):
            return host.to(self.device, non_blocking=True)

    def arrived(self, signals: Tensor) -> Tensor:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            signals.record_stream(torch.cuda.current_stream())
        return signals


def join(pending: Pending, size: int) -> str:
    """Letters of a whole read; half of each overlap comes from either chunk."""
    letters = np.frombuffer(b"ACGT", np.uint8)
    text = []
    for number, start in enumerate(pending.starts):
        bases, moves = pending.pieces[number]
        first, last = 0, min(size, pending.length - start) // STRIDE
        if number > 0:
            first = (pending.starts[number - 1] + size - start) // STRIDE // 2
        if number + 1 < len(pending.starts):
            shared = (start + size - pending.starts[number + 1]) // STRIDE
            last -= shared - shared // 2
        text.append(letters[bases[first:last][moves[first:last]]].tobytes().decode())
    return "".join(text)


def nanopore_basecaller(s: Setup, *, graphed: bool = False, overlapped: bool = False, pinned: bool = False) -> Step:
    """Each flag carries out one finding by itself: network and Viterbi's forward pass as one CUDA graph; the next batch's kernels launched before
    the host works on this one's results; pinned memory both ways, with the next batch copied ahead."""
    torch.manual_seed(21)
    rng = np.random.default_rng(21)
    size, overlap, batch = s.size(3000, 400), s.size(300, 50), s.size(96, 4)
    reads = sequencer(rng, s.size(60, 6), s.size(2500, 120))
    dtype = torch.float16 if s.cuda else torch.float32
    model = Basecaller(s.size(384, 16), s.size(4, 2)).to(s.device, dtype).eval()
    viterbi = Viterbi(model.states, s.device)
    pending: dict[str, Pending] = {}

    def chunks() -> Iterator[tuple[str, int, Tensor]]:
        """Chunks of one read after another, for as long as the flow cell runs."""
        turn = 0
        while True:
            read = reads[turn % len(reads)]
            name = f"{read.name}.{turn // len(reads)}"
            turn += 1
            signal = normalise(read)
            starts = chunk_starts(len(signal), size, overlap)
            pending[name] = Pending(starts, len(signal))
            for number, start in enumerate(starts):
                piece = signal[start : start + size]
                yield name, number, nn.functional.pad(piece, (0, size - len(piece)))

    stream = chunks()

    def fill() -> tuple[list[tuple[str, int, Tensor]], Tensor]:
        filled = [next(stream) for _ in range(batch)]
        return filled, torch.stack([signal for _, _, signal in filled]).unsqueeze(1)

    def finish(filled: list[tuple[str, int, Tensor]], bases: np.ndarray, moves: np.ndarray, quality: np.ndarray) -> dict[str, object]:
        for row, (name, number, _) in enumerate(filled):
            pending[name].pieces[number] = bases[row], moves[row]
        done = [name for name, read in pending.items() if len(read.pieces) == len(read.starts)]
        called = {name: join(pending.pop(name), size) for name in done}
        return {
            "reads": len(called),
            "bases": sum(map(len, called.values())),
            "score": float(quality.mean()),
            "moves": float(moves.mean()),
            "called": called,
        }

    @torch.inference_mode()
    def step() -> dict[str, object]:
        filled, signals = fill()
        scores = model(signals.to(s.device, dtype)).float()
        return finish(filled, *viterbi(scores))

    if graphed:
        graph = Graphed(model, viterbi, (batch, 1, size), dtype, s)

        @torch.inference_mode()
        def graphed_step() -> dict[str, object]:
            filled, signals = fill()
            back, best, last = graph(signals.to(s.device, dtype))
            return finish(filled, *viterbi.way_back(back.cpu().numpy(), last.cpu().numpy(), best))

        return graphed_step

    if overlapped:
        side = torch.cuda.Stream() if s.cuda else None

        def upload() -> tuple[list[tuple[str, int, Tensor]], Tensor]:
            """The next batch. The copy waits for its own stream, not for the kernels that run meanwhile."""
            filled, signals = fill()
            with torch.cuda.stream(side):
                return filled, signals.to(s.device, dtype)

        def launch(filled: list[tuple[str, int, Tensor]], signals: Tensor) -> tuple[list[tuple[str, int, Tensor]], tuple[Tensor, ...], torch.cuda.Event | None]:
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)
                signals.record_stream(torch.cuda.current_stream())
            results = viterbi.forward_pass(model(signals).float())
            return filled, results, torch.cuda.current_stream().record_event() if s.cuda else None

        ready: list[tuple[list[tuple[str, int, Tensor]], Tensor]] = []
        running: list[tuple[list[tuple[str, int, Tensor]], tuple[Tensor, ...], torch.cuda.Event | None]] = []

        @torch.inference_mode()
        def overlapped_step() -> dict[str, object]:
            if not running:
                running.append(launch(*upload()))
                ready.append(upload())
            running.append(launch(*ready.pop()))  # before the host turns to the batch that was launched a step ago
            filled, results, computed = running.pop(0)
            with torch.cuda.stream(side):
                if side is not None:
                    side.wait_event(computed)
                back, best, last = (result.cpu() for result in results)  # each waits for the side stream only
            done = finish(filled, *viterbi.way_back(back.numpy(), last.numpy(), best))
            ready.append(upload())
            return done

        return overlapped_step

    if pinned:
        copies = CopyAhead((batch, 1, size), dtype, s)
        host_results: list[Tensor] = []
        ahead: list[tuple[list[tuple[str, int, Tensor]], Tensor]] = []

        @torch.inference_mode()
        def fetch() -> tuple[list[tuple[str, int, Tensor]], Tensor]:
            filled, signals = fill()
            return filled, copies.fetch(signals)

        @torch.inference_mode()
        def pinned_step() -> dict[str, object]:
            if not ahead:
                ahead.append(fetch())
            filled, signals = ahead.pop()
            signals = copies.arrived(signals)
            ahead.append(fetch())  # copied while this batch is computed
            scores = model(signals).float()
            results = viterbi.forward_pass(scores)
            if not host_results:
                host_results.extend(s.pin(torch.empty(result.shape, dtype=result.dtype)) for result in results)
            for host, result in zip(host_results, results, strict=False):
                host.copy_(result, non_blocking=True)
            s.synchronize()
            back, best, last = host_results
            return finish(filled, *viterbi.way_back(back.numpy(), last.numpy(), best))

        return pinned_step

    return step


PROGRAM = advised(
    "nanopore_basecaller",
    "Five LSTMs in fp16 call the letters of 96 chunks of current; Viterbi goes forward on the GPU step by step, back in NumPy.",
    nanopore_basecaller,
    {"launch-gap": {"graphed": True}, "host-bound": {"overlapped": True}, "memcpy": {"pinned": True}},
)
