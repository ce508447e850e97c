"""Punctuation and capitals for raw speech transcripts of a parliament: a CamemBERT tags words in overlapping windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import CamembertConfig, CamembertModel

from workloads.base import Setup, Step, advised

MARKS = ("", ",", ".", "?", ":")
CASES = ("lower", "Capital", "UPPER")
BOS, PAD, EOS, UNK = 5, 1, 6, 3
SYLLABLES = [
    "la",
    "le",
    "de",
    "ré",
    "ma",
    "nu",
    "ton",
    "pli",
    "ver",
    "sa",
    "mi",
    "ro",
    "char",
    "ges",
    "tion",
    "ment",
    "pro",
    "lo",
    "si",
    "bou",
    "ques",
    "né",
    "par",
    "fi",
    "nan",
    "ce",
    "bud",
    "get",
    "ar",
    "ti",
    "cle",
]


@dataclass
class Transcript:
    session: str
    words: list[str]


@dataclass
class Window:
    """Pieces [start, end) of one transcript, without the special tokens."""

    request: int
    start: int
    end: int
    ids: list[int]


class Tagger(nn.Module):
    """Two heads on one encoder: the mark after a piece, and the case of its word."""

    def __init__(self, config: CamembertConfig) -> None:
        super().__init__()
        self.encoder = CamembertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.mark = nn.Linear(config.hidden_size, len(MARKS))
        self.case = nn.Linear(config.hidden_size, len(CASES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        hidden = self.dropout(hidden)
        return self.mark(hidden), self.case(hidden)


class Pieces:
    """Greedy longest-match pieces with a cache of words, in place of sentencepiece."""

    def __init__(self, vocabulary: int) -> None:
        self.vocab = {syllable: 10 + i for i, syllable in enumerate(SYLLABLES)}
        self.vocabulary = vocabulary
        self.cache: dict[str, list[int]] = {}

    def word(self, word: str) -> list[int]:
        if word in self.cache:
            return self.cache[word]
        ids, at = [], 0
        while at < len(word):
            for end in range(min(len(word), at + 6), at, -1):
                if word[at:end] in self.vocab:
                    # a piece that begins a word is another one than the same within a word
                    ids.append((self.vocab[word[at:end]] * 61 + (at == 0) * 17 + end * 997) % (self.vocabulary - 100) + 50)
                    at = end
                    break
            else:
                ids.append(UNK)
                at += 1
        self.cache[word] = ids[:4]
        return self.cache[word]

    def __call__(self, words: list[str]) -> tuple[list[int], list[int]]:
        """Ids of all pieces, and for each word the place of its last piece."""
        ids: list[int] = []
        last: list[int] = []
        for word in words:
            ids.extend(self.word(word))
            last.append(len(ids) - 1)
        return ids, last


def speech(rng: random.Random, length: int) -> list[str]:
    return ["".join(rng.choices(SYLLABLES, k=rng.choice((1, 1, 1, 2, 2, 3)))) for _ in range(length)]


def weighed(model: Tagger, input_ids: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [windows, pieces, …] times the weights of the pieces, which are 0 behind a window's end."""
    mark_logits, case_logits = model(input_ids, mask)
    at = torch.arange(input_ids.shape[1] - 2, device=input_ids.device)
    n = lengths[:, None]
    x = 2 * at / (n - 1).clamp(min=1) - 1
    weight = ((1 - x.abs()).clamp(min=0.05) * (at < n))[:, :, None]
    return weight * mark_logits.float().softmax(dim=-1)[:, 1:-1], weight * case_logits.float().softmax(dim=-1)[:, 1:-1]


class PunctuationService:
    def __init__(self, model: Tagger, pieces: Pieces, device: torch.device, window: int, stride: int, batch_size: int) -> None:
        self.model, self.pieces, self.device = model, pieces, device
        self.window, self.stride, self.batch_size = window, stride, batch_size
        self.weighed: Callable[..., tuple[Tensor, Tensor]] | None = None  # all windows of a pass at once
        self.fixed = False  # passes of one shape
        self.all = False  # all windows in one pass
        self.late = False  # one wait for all answers

    def cut(self, request: int, ids: list[int]) -> list[Window]:
        windows = []
        start = 0
        while True:
            end = min(start + self.window, len(ids))
            windows.append(Window(request, start, end, ids[start:end]))
            if end == len(ids):
                return windows
            start += self.stride

    def collate(self, windows: list[Window]) -> tuple[Tensor, Tensor]:
        longest = max(len(w.ids) for w in windows) + 2
        rows = len(windows)
        if self.fixed:
            rows, longest = self.batch_size, self.window + 2
        input_ids = torch.full((rows, longest), PAD, dtype=torch.long)
        mask = torch.zeros((rows, longest), dtype=torch.long)
        if self.fixed:
            mask[len(windows) :, 0] = 1  # a row without a window attends to something, too
        for row, w in enumerate(windows):
            input_ids[row, : len(w.ids) + 2] = torch.tensor([BOS, *w.ids, EOS])
            mask[row, : len(w.ids) + 2] = 1
        return input_ids.to(self.device), mask.to(self.device)

    def weights(self, length: int) -> Tensor:
        """Pieces in the middle of a window have seen more context than those at its ends."""
        x = torch.linspace(-1, 1, length, device=self.device)
        return (1 - x.abs()).clamp(min=0.05)

    def add(self, part: list[Window], input_ids: Tensor, mask: Tensor, marks: list[Tensor], cases: list[Tensor], whole: tuple[Tensor, Tensor]) -> None:
        """All windows of a pass at once; marks and cases are views of the two tensors of whole."""
        rows, longest = input_ids.shape[0], input_ids.shape[1] - 2
        begins, total = [], 0
        for scores in marks:
            begins.append(total)
            total += len(scores)
        spare = [0] * (rows - len(part))
        lengths = torch.tensor([w.end - w.start for w in part] + spare)
        places = torch.tensor([begins[w.request] + w.start for w in part] + spare)[:, None] + torch.arange(longest)
        places = places.clamp(max=total - 1).flatten().to(self.device)  # what lies behind a window's end adds 0
        if self.fixed:
            torch.compiler.cudagraph_mark_step_begin()
        for scores, probs in zip(whole, self.weighed(self.model, input_ids, mask, lengths.to(self.device)), strict=False):
            scores.index_add_(0, places, probs.flatten(0, 1))

    def prepare(self, requests: list[Transcript]) -> tuple[list[tuple[list[int], list[int]]], list[Window]]:
        encoded = [self.pieces(r.words) for r in requests]
        windows = [w for i, (ids, _) in enumerate(encoded) for w in self.cut(i, ids)]
        windows.sort(key=lambda w: len(w.ids), reverse=True)
        return encoded, windows

    @torch.inference_mode()
    def __call__(self, requests: list[Transcript], prepared: Prepared | None = None) -> list[dict[str, object]]:
        if prepared is None:
            encoded, windows = self.prepare(requests)
            sizes, lasts = [len(ids) for ids, _ in encoded], [last for _, last in encoded]
        else:
            sizes, lasts, windows = prepared.sizes, prepared.lasts, prepared.windows

        if self.weighed is not None:
            whole = torch.zeros(sum(sizes), len(MARKS), device=self.device), torch.zeros(sum(sizes), len(CASES), device=self.device)
            marks, cases = (list(scores.split(sizes)) for scores in whole)
        else:
            marks = [torch.zeros(size, len(MARKS), device=self.device) for size in sizes]
            cases = [torch.zeros(size, len(CASES), device=self.device) for size in sizes]
        batch_size = len(windows) if self.all else self.batch_size
        for first in range(0, len(windows), batch_size):
            part = windows[first : first + batch_size]
            if prepared is None:
                input_ids, mask = self.collate(part)
            else:
                input_ids, mask = (made.to(self.device) for made in prepared.passes[first // batch_size])
            if self.weighed is not None:
                self.add(part, input_ids, mask, marks, cases, whole)
                continue
            if self.late and len(part[0].ids) == len(part[-1].ids):
                mask = None  # nothing is padded: the encoder need not ask the GPU
            mark_logits, case_logits = self.model(input_ids, mask)
            mark_probs = mark_logits.float().softmax(dim=-1)
            case_probs = case_logits.float().softmax(dim=-1)
            for row, w in enumerate(part):
                n = w.end - w.start
                weight = self.weights(n)[:, None]
                marks[w.request][w.start : w.end] += weight * mark_probs[row, 1 : n + 1]
                cases[w.request][w.start : w.end] += weight * case_probs[row, 1 : n + 1]

        answers = []
        found = []
        for i, (request, last) in enumerate(zip(requests, lasts, strict=False)):
            at = torch.as_tensor(last, device=self.device)
            mark = marks[i][at] / marks[i][at].sum(dim=-1, keepdim=True)
            case = cases[i][at]
            best, which = mark.max(dim=-1)
            if self.late:
                found.append([self.host(x) for x in (which, case.argmax(dim=-1), best.mean(), best)])
                continue
            text = self.write(request.words, which.tolist(), case.argmax(dim=-1).tolist())
            answers.append({"session": request.session, "text": text, "confidence": best.mean().item(), "words": best.cpu()})
        if self.late:
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # the one wait, for all copies
            for request, (which, case, mean, best) in zip(requests, found, strict=False):
                text = self.write(request.words, which.tolist(), case.tolist())
                answers.append({"session": request.session, "text": text, "confidence": mean.item(), "words": best})
        return answers

    @staticmethod
    def host(x: Tensor) -> Tensor:
        """A copy in pinned memory, complete once the stream has been waited for."""
        if not x.is_cuda:
            return x
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)

    @staticmethod
    def write(words: list[str], marks: list[int], cases: list[int]) -> str:
        out = []
        upper = True
        for word, mark, case in zip(words, marks, cases, strict=False):
            if CASES[case] == "UPPER":
                word = word.upper()
            elif CASES[case] == "Capital" or upper:
                word = word.capitalize()
            out.append(word + MARKS[mark])
            upper = MARKS[mark] in (".", "?")
        return " ".join(out)


@dataclass
class Prepared:
    """What a worker makes of requests: the numbers of their pieces, places of the words, windows without ids, and passes."""

    sizes: list[int]
    lasts: list[Tensor]
    windows: list[Window]
    passes: list[tuple[Tensor, Tensor]]


class Arriving(torch.utils.data.IterableDataset):
    """Requests in their order, for one worker; its service has no model and stays on the CPU."""

    def __init__(self, service: PunctuationService, pool: list[Transcript], together: int) -> None:
        self.service, self.pool, self.together = service, pool, together

    def __iter__(self) -> Iterator[Prepared]:
        size, turn = self.service.batch_size, 0
        while True:
            encoded, windows = self.service.prepare([self.pool[(turn * self.together + i) % len(self.pool)] for i in range(self.together)])
            turn += 1
            yield Prepared(
                [len(ids) for ids, _ in encoded],
                [torch.tensor(last) for _, last in encoded],
                [Window(w.request, w.start, w.end, []) for w in windows],
                [self.service.collate(windows[first : first + size]) for first in range(0, len(windows), size)],
            )


def as_it_is(x: Prepared) -> Prepared:
    return x


def senate_commas(s: Setup, *, graphs: bool = False, compiled: bool = False, worker: bool = False, late: bool = False, together_all: bool = False) -> Step:
    config = CamembertConfig(
        vocab_size=s.size(32005, 500),
        hidden_size=s.size(768, 32),
        num_hidden_layers=s.size(12, 2),
        num_attention_heads=s.size(12, 4),
        intermediate_size=s.size(3072, 64),
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    dtype = torch.float16 if s.cuda else torch.float32
    model = Tagger(config).to(device=s.device, dtype=dtype).eval()
    service = PunctuationService(model, Pieces(config.vocab_size), s.device, window=s.size(256, 24), stride=s.size(192, 16), batch_size=s.size(32, 4))

    rng = random.Random(1875)
    shortest, longest = s.size(700, 20), s.size(1300, 40)
    pool = [Transcript(f"séance-{i:03d}", speech(rng, rng.randint(shortest, longest))) for i in range(s.size(48, 6))]
    together = s.size(8, 2)
    turn = 0
    if graphs:
        service.weighed, service.fixed = s.compile(weighed, mode="reduce-overhead"), True
    if compiled:
        service.weighed = s.compile(weighed)
    if together_all:
        service.weighed, service.all = weighed, True
    service.late = late
    arriving = None
    if worker:
        alone = PunctuationService(None, Pieces(config.vocab_size), torch.device("cpu"), service.window, service.stride, service.batch_size)
        arriving = iter(
            torch.utils.data.DataLoader(
                Arriving(alone, pool, together),
                batch_size=None,
                num_workers=1,
                prefetch_factor=4,
                persistent_workers=True,
                collate_fn=as_it_is,
                generator=torch.Generator(),
            )
        )

    def step() -> dict[str, object]:
        nonlocal turn
        requests = [pool[(turn * together + i) % len(pool)] for i in range(together)]
        turn += 1
        answers = service(requests, None if arriving is None else next(arriving))
        return {
            "confidence": [a["confidence"] for a in answers],
            "words": torch.cat([a["words"] for a in answers]),
            "characters": sum(len(a["text"]) for a in answers),
        }

    return step


PROGRAM = advised(
    "senate_commas",
    "CamemBERT base in fp16 puts marks and capitals into 8 transcripts a call, in overlapping windows of 256; scores added one by one.",
    senate_commas,
    {
        "launch-gap": {"graphs": True},
        "unfused-elementwise": {"compiled": True},
        "host-bound": {"worker": True},
        "sync-stall": {"late": True},
        "low-arithmetic-intensity": {"together_all": True},
    },
)
