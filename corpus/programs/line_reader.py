"""host-bound"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written_pair


class LineReader(nn.Module):
    def __init__(self, width: int, letters: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer, pool in ((1, width, (2, 2)), (width, 2 * width, (2, 2)), (2 * width, 4 * width, (2, 1)), (4 * width, 4 * width, (2, 1))):
            layers += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(pool)]
        self.see = nn.Sequential(*layers)
        self.read = nn.LSTM(8 * width, 4 * width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8 * width, letters)

    def forward(self, lines: Tensor) -> Tensor:
        seen = self.see(lines).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.read(seen)[0]).softmax(-1)


LETTERS = "\0" + "".join(chr(32 + i) for i in range(95))  # the first is no letter at all


def read_in_python(chances: Tensor) -> list[tuple[str, float]]:
    answers = []
    for frames in chances.cpu().numpy():
        text, sure, before = "", 1.0, 0
        for frame in frames:
            code = int(frame.argmax())
            if code not in (0, before):
                text += LETTERS[code]
                sure *= float(frame[code])
            before = code
        answers.append((text, sure))
    return answers


def read_on_gpu(chances: Tensor) -> list[tuple[str, float]]:
    most, best = chances.max(-1)
    kept = (best != 0) & (best != F.pad(best[:, :-1], (1, 0)))
    codes = torch.where(kept, best + 31, 0).to(torch.uint8)
    sure = torch.where(kept, most, 1.0).double().prod(1)
    texts = [row.tobytes().replace(b"\0", b"").decode("latin-1") for row in codes.cpu().numpy()]
    return list(zip(texts, sure.tolist(), strict=True))


def line_reader(s: Setup, *, on_gpu: bool = False, ahead: bool = False, last: bool = False) -> Step:
    lines, height, width = s.size(64, 2), 32, s.size(512, 16)
    layout = torch.channels_last if last else torch.contiguous_format
    model = LineReader(s.size(32, 2), len(LETTERS)).to(s.device).to(memory_format=layout).eval().requires_grad_(False)
    scans = [(torch.randint(256, (lines, 1, height, width), dtype=torch.uint8),) for _ in range(3)]
    coming = Prefetcher([(s.pin(scan),) for (scan,) in scans], s) if ahead else None
    decode, turn = read_on_gpu if on_gpu else read_in_python, [0]

    @torch.no_grad()
    def step() -> list[tuple[str, float]]:
        if coming is not None:
            (scan,) = coming.next()
        else:
            turn[0] = (turn[0] + 1) % len(scans)
            scan = scans[turn[0]][0].to(s.device)
        return decode(model((1.0 - scan.float() / 255.0).to(memory_format=layout)))

    return step


PROGRAM = written_pair(
    "line_reader",
    "host-bound",
    "A convolutional and recurrent network reads 64 lines; all chances are fetched and decoded letter by letter in Python.",
    "decode on the GPU",
    line_reader,
    {"on_gpu": True},
    alone={"memcpy": {"ahead": True}, "memory-layout": {"last": True}},
    with_stack=True,
)
