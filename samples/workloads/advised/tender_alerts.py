"""Which firms should hear of today's public tenders: texts are embedded, firms searched, and rules decide who gets a mail."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import ModernBertConfig, ModernBertModel

from ..base import Setup, Step

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
ONSETS = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "gr"]
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeio"]
LANGUAGES = ("de", "fr", "it", "nl", "pl", "cs")


@dataclass(slots=True)
class Firm:
    group: int
    codes: tuple[int, ...]
    lat: float
    lon: float
    turnover: float
    radius_km: float
    languages: frozenset[str]
    wins: int
    bids: int
    unsubscribed: bool


@dataclass(slots=True)
class Tender:
    text: str
    code: int
    lat: float
    lon: float
    value: float
    language: str
    days_left: int


def distance_km(a: Firm, b: Tender) -> float:
    """Along the great circle."""
    p, q = math.radians(a.lat), math.radians(b.lat)
    h = math.sin((q - p) / 2) ** 2 + math.cos(p) * math.cos(q) * math.sin(math.radians(b.lon - a.lon) / 2) ** 2
    return 12742 * math.asin(math.sqrt(h))


def make_words(count: int) -> list[str]:
    n = len(SYLLABLES)
    return [SYLLABLES[i % n] + SYLLABLES[i // n % n] + SYLLABLES[i // n // n] for i in range(count)]


def make_tokenizer(words: list[str], longest: int) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(SPECIAL + words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", pad_to_multiple_of=8)
    return tokenizer


class Embedder:
    """Mean-pooled, centred and normalised vectors."""

    def __init__(self, model: ModernBertModel, tokenizer: Tokenizer, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.centre: Tensor | None = None
        self.waits = True  # for copies, and for what the model asks about its mask

    def masks(self, mask: Tensor) -> dict[str, Tensor]:
        """What the model would make of it, without asking whether anything is masked at all."""
        n = mask.shape[1]
        full = mask.bool()[:, None, None, :].expand(-1, 1, n, n).contiguous()
        place = torch.arange(n, device=mask.device)
        near = (place[:, None] - place).abs() <= self.model.config.sliding_window
        return {"full_attention": full, "sliding_attention": full & near}

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=ids, attention_mask=mask if self.waits else self.masks(mask)).last_hidden_state.float()
        vectors = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        if self.centre is not None:
            vectors = vectors - self.centre
        return F.normalize(vectors, dim=-1)

    @torch.inference_mode()
    def __call__(self, texts: list[str]) -> Tensor:
        encodings = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([e.ids for e in encodings])
        mask = torch.tensor([e.attention_mask for e in encodings])
        if not self.waits and self.device.type == "cuda":
            ids, mask = ids.pin_memory(), mask.pin_memory()
        return self.encode(ids.to(self.device, non_blocking=not self.waits), mask.to(self.device, non_blocking=not self.waits))


class FirmIndex:
    def __init__(self, vectors: Tensor, firms: list[Firm]) -> None:
        self.vectors, self.firms = vectors, firms

    @torch.inference_mode()
    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return (queries.to(self.vectors.dtype) @ self.vectors.T).float().topk(k, dim=1)

    def search(self, queries: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, found = self.nearest(queries, k)
        return scores.cpu().numpy(), found.cpu().numpy()


class AlertDesk:
    """The rules of the sales department."""

    def __init__(self, firms: list[Firm], most: int = 10, per_day: int = 3, per_group: int = 2) -> None:
        self.firms, self.most, self.per_day, self.per_group = firms, most, per_day, per_group
        self.sent_today: Counter[int] = Counter()

    def rate(self, firm: Firm, tender: Tender, similarity: float) -> float | None:
        """None where the firm must not be asked."""
        if firm.unsubscribed or tender.language not in firm.languages:
            return None
        if firm.turnover < 1.5 * tender.value:
            return None
        km = distance_km(firm, tender)
        if km > 2 * firm.radius_km:
            return None
        near = 1.0 if km <= firm.radius_km else 2 - km / firm.radius_km
        success = (firm.wins + 1) / (firm.bids + 8)
        same = max((1.0 if code == tender.code else 0.4 if code // 100 == tender.code // 100 else 0.0) for code in firm.codes)
        hurry = 1 / (1 + math.exp(4 - tender.days_left))
        return 0.55 * similarity + 0.15 * near + 0.15 * same + 0.10 * min(1.0, 3 * success) + 0.05 * hurry

    def choose(self, tender: Tender, candidates: list[int], similarities: list[float]) -> list[tuple[int, float]]:
        rated = []
        for firm_id, similarity in zip(candidates, similarities, strict=False):
            if self.sent_today[firm_id] >= self.per_day:
                continue
            score = self.rate(self.firms[firm_id], tender, similarity)
            if score is not None:
                rated.append((firm_id, score))
        rated.sort(key=lambda pair: pair[1], reverse=True)
        return self.pick(rated)

    def pick(self, rated: list[tuple[int, float]]) -> list[tuple[int, float]]:
        chosen: list[tuple[int, float]] = []
        groups: Counter[int] = Counter()
        for firm_id, score in rated:
            group = self.firms[firm_id].group
            if groups[group] >= self.per_group:
                continue
            groups[group] += 1
            self.sent_today[firm_id] += 1
            chosen.append((firm_id, score))
            if len(chosen) == self.most:
                break
        return chosen


class RatingTable:
    """AlertDesk.rate for a whole batch on the device; -inf where the firm must not be asked."""

    def __init__(self, firms: list[Firm], tenders: list[Tender], device: torch.device) -> None:
        def column(values: list, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        self.lat, self.lon = column([math.radians(f.lat) for f in firms]), column([math.radians(f.lon) for f in firms])
        self.turnover, self.radius = column([f.turnover for f in firms]), column([f.radius_km for f in firms])
        self.success = column([min(1.0, 3 * (f.wins + 1) / (f.bids + 8)) for f in firms])
        self.codes = column([f.codes for f in firms], torch.long)
        self.speaks = column([[name in f.languages and not f.unsubscribed for name in LANGUAGES] for f in firms], torch.bool)
        self.t_lat, self.t_lon = column([math.radians(t.lat) for t in tenders]), column([math.radians(t.lon) for t in tenders])
        self.t_value, self.t_code = column([t.value for t in tenders]), column([t.code for t in tenders], torch.long)
        self.t_language = column([LANGUAGES.index(t.language) for t in tenders], torch.long)
        self.t_hurry = column([1 / (1 + math.exp(4 - t.days_left)) for t in tenders])

    @torch.inference_mode()
    def __call__(self, start: int, similarity: Tensor, found: Tensor) -> tuple[list, list]:
        """Firms and scores of each tender, best first."""
        now = slice(start, start + len(found))
        p, q = self.lat[found], self.t_lat[now, None]
        h = torch.sin((q - p) / 2) ** 2 + torch.cos(p) * torch.cos(q) * torch.sin((self.t_lon[now, None] - self.lon[found]) / 2) ** 2
        km, radius = 12742 * torch.asin(torch.sqrt(h)), self.radius[found]
        codes, code = self.codes[found], self.t_code[now, None, None]
        same = (6 * (codes == code) + 4 * (codes // 100 == code // 100)).amax(-1).double() / 10
        near = torch.where(km <= radius, 1.0, 2 - km / radius)
        score = 0.55 * similarity.double() + 0.15 * near + 0.15 * same + 0.10 * self.success[found] + 0.05 * self.t_hurry[now, None]
        asked = self.speaks[found, self.t_language[now, None]] & (self.turnover[found] >= 1.5 * self.t_value[now, None]) & (km <= 2 * radius)
        score, order = torch.where(asked, score, -math.inf).sort(dim=1, descending=True, stable=True)
        return found.gather(1, order).tolist(), score.tolist()


def make_firms(rng: np.random.Generator, count: int, codes: int) -> tuple[list[Firm], np.ndarray]:
    chosen = rng.integers(codes, size=(count, 3))
    lat, lon = rng.normal(49.5, 2.5, count).tolist(), rng.normal(9.0, 5.0, count).tolist()
    turnover = np.exp(rng.normal(15.5, 1.5, count)).tolist()
    radius = rng.choice([150.0, 400.0, 900.0, 2500.0], count).tolist()
    spoken, group = rng.integers(1, 64, count).tolist(), rng.integers(max(1, count // 3), size=count).tolist()
    bids, share, gone = rng.integers(0, 60, count).tolist(), rng.beta(2, 6, count).tolist(), (rng.random(count) < 0.03).tolist()
    tongues = [frozenset(name for bit, name in enumerate(LANGUAGES) if spoken_by >> bit & 1) for spoken_by in range(64)]
    firms = [
        Firm(group[i], tuple(c), lat[i], lon[i], turnover[i], radius[i], tongues[spoken[i]], int(share[i] * bids[i]), bids[i], gone[i])
        for i, c in enumerate(chosen.tolist())
    ]
    return firms, chosen


def tender_alerts(s: Setup, *, rated: bool = False, graphs: bool = False, compiled: bool = False, ahead: bool = False) -> Step:
    """One step is one batch of new tenders, up to the mails that go out."""
    rng = np.random.default_rng(11)
    n_words, n_codes, n_firms = s.size(50_000, 400), s.size(9454, 64), s.size(250_000, 800)
    batch, pool, k = s.size(24, 4), s.size(384, 8), s.size(200, 40)
    words = make_words(n_words)

    config = ModernBertConfig(
        vocab_size=len(SPECIAL) + n_words,
        hidden_size=s.size(768, 32),
        intermediate_size=s.size(1152, 48),
        num_hidden_layers=s.size(22, 3),
        num_attention_heads=s.size(12, 2),
        pad_token_id=0,
        cls_token_id=2,
        bos_token_id=2,
        sep_token_id=3,
        eos_token_id=3,
        attn_implementation="sdpa",
    )
    with s.device:
        model = ModernBertModel(config)
    model = model.to(torch.bfloat16).eval()
    embed = Embedder(model, make_tokenizer(words, s.size(512, 48)), s.device)

    # the official catalogue: a dozen words for each code, some shared with the rest of its division
    topics = [rng.integers(n_words, size=20) for _ in range(n_codes // 100 + 1)]
    terms = [np.concatenate([rng.choice(topics[c // 100], 5), rng.integers(n_words, size=7)]) for c in range(n_codes)]
    catalogue = [" ".join(words[i] for i in row) for row in terms]
    codes = torch.cat([embed(catalogue[i : i + 512]) for i in range(0, n_codes, 512)])
    embed.centre = codes.mean(0)
    codes = F.normalize(codes - embed.centre, dim=-1)

    firms, chosen = make_firms(rng, n_firms, n_codes)
    vectors = torch.stack([codes[torch.from_numpy(column).to(s.device)] for column in chosen.T]).mean(0)
    vectors = F.normalize(vectors, dim=-1) + 0.5 * F.normalize(torch.randn_like(vectors), dim=-1)
    index = FirmIndex(F.normalize(vectors, dim=-1).to(torch.float16), firms)

    tenders = []
    for _ in range(pool):
        code, length = int(rng.integers(n_codes)), int(rng.integers(s.size(180, 20), s.size(500, 44)))
        common = np.minimum(rng.zipf(1.3, length), n_words) - 1
        drawn = np.where(rng.random(length) < 0.35, rng.choice(terms[code], length), common)
        lat, lon, value = rng.normal(49.5, 2.0), rng.normal(9.0, 4.0), math.exp(rng.normal(13.0, 1.2))
        language = LANGUAGES[int(rng.integers(6))]
        text = " ".join(words[i] for i in drawn)
        tenders.append(Tender(text, code, float(lat), float(lon), value, language, int(rng.integers(1, 40))))

    desk = AlertDesk(firms)
    table = RatingTable(firms, tenders, s.device) if rated else None
    if graphs:  # one shape for all batches
        embed.tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=s.size(512, 48))
        embed.encode = s.compile(embed.encode, mode="reduce-overhead")
    if compiled:
        embed.encode = s.compile(embed.encode)
    embed.waits = not ahead
    outbox: deque[tuple[int, float]] = deque(maxlen=5000)
    turn = 0
    under_way: deque[tuple[Tensor, Tensor, torch.cuda.Event | None]] = deque()

    def launch(start: int) -> None:
        """Starts the search for a batch, and its copy to the host."""
        results = index.nearest(embed([tender.text for tender in tenders[start : start + batch]]), k)
        if not s.cuda:
            under_way.append((*results, None))
            return
        host = [torch.empty(r.shape, dtype=r.dtype, pin_memory=True) for r in results]
        for to, result in zip(host, results, strict=False):
            to.copy_(result, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        under_way.append((host[0], host[1], event))

    def collect(start: int) -> tuple[np.ndarray, np.ndarray]:
        """What was launched for this batch a step ago, while the next one is on its way."""
        if not under_way:
            launch(start)
        launch((start + batch) % pool)
        scores, found, event = under_way.popleft()
        if event is not None:
            event.synchronize()
        return scores.numpy(), found.numpy()

    def step() -> dict[str, object]:
        nonlocal turn
        start = turn * batch % pool
        if start == 0:
            desk.sent_today.clear()  # a new day
        turn += 1
        news = tenders[start : start + batch]
        if graphs and s.cuda:
            torch.compiler.cudagraph_mark_step_begin()
        if ahead:
            similarities, found = collect(start)
        elif table is not None:
            found, similarities = table(start, *index.nearest(embed([tender.text for tender in news]), k))
        else:
            similarities, found = index.search(embed([tender.text for tender in news]), k)
        best, mails = np.zeros((batch, desk.most)), 0
        for row, tender in enumerate(news):
            if table is not None:
                alerts = desk.pick([pair for pair in zip(found[row], similarities[row], strict=False) if pair[1] > -math.inf and desk.sent_today[pair[0]] < desk.per_day])
            else:
                alerts = desk.choose(tender, found[row].tolist(), similarities[row].tolist())
            outbox.extend(alerts)
            mails += len(alerts)
            best[row, : len(alerts)] = [score for _, score in alerts]
        return {"scores": best, "mails": mails}

    return step
