"""Programs by an author who has not read the rules, the thirteenth set: code and depth by public models, newspapers, wildfires, number plates.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

from itertools import count as counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, written

BF16 = torch.bfloat16


# Code: a StarCoder, many heads of queries that share one of keys (transformers).


def star_coder(s: Setup, *, attention: str = "eager", padded: bool = False, fused: bool = False, read: bool = True) -> Step:
    """The files lie on the GPU as tokens; one token was added to the tokenizer's 49,152."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    words, width, longest, count, files = s.size(49_153, 41), s.size(1024, 16), s.size(1024, 8), s.size(6, 2), s.size(256, 4)
    config = GPTBigCodeConfig(
        vocab_size=-(-words // 64) * 64 if padded else words, n_positions=longest, n_embd=width, n_layer=s.size(6, 1), n_head=s.size(16, 2),
        n_inner=4 * width, multi_query=True, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False, attn_implementation=attention,
        bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    with s.device:
        model = GPTBigCodeForCausalLM(config).train()
        text, mean = torch.randint(words, (files, longest)), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False, fused=fused or None)
    losses, turn = [0.0], counter()

    def step() -> Tensor:
        first = next(turn) * count % (files - count + 1)
        these = text[first : first + count]
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            logits = model(input_ids=these, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1, :words].float().flatten(0, 1), these[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        if read:
            losses[0] = loss.item()
        return mean

    return step


# Films: how far each thing is, by a DPT (transformers).


def film_depth(s: Setup, *, attention: str = "eager", autocast: bool = False, last: bool = False, ahead: bool = False, read: bool = True) -> Step:
    """Eight frames at a time; each clip is shown between its nearest and its farthest thing."""
    from transformers import DPTConfig, DPTForDepthEstimation

    side, count, width, layers = s.size(384, 32), s.size(8, 2), s.size(768, 16), s.size(8, 4)
    necks, fusion = ([96, 192, 384, 768], 256) if not s.tiny else ([4, 4, 8, 8], 8)
    config = DPTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=s.size(12, 2), intermediate_size=4 * width, image_size=side, patch_size=16,
        backbone_out_indices=[layers * n // 4 - 1 for n in (1, 2, 3, 4)], neck_hidden_sizes=necks, fusion_hidden_size=fusion, is_hybrid=False,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model = DPTForDepthEstimation(config).eval()
        for part in (*model.neck.modules(), *model.head.modules()):
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.xavier_normal_(part.weight)  # the library's own random weights would put all things at the same depth
        nn.init.constant_(model.head.head[-2].bias, 5.0)
        mean, spread = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    if last:
        model = model.to(memory_format=torch.channels_last)
    clips: list[tuple[Tensor, ...]] = [(torch.randint(256, (count, 3, side, side), dtype=torch.uint8),) for _ in range(4)]
    queue = Prefetcher([(s.pin(clip),) for (clip,) in clips], s) if ahead else None
    turn = counter()

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        (frames,) = queue.next() if queue else (clips[next(turn) % len(clips)][0].to(s.device),)
        x = (frames.float() / 255.0 - mean) / spread
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            depth = model(pixel_values=x).predicted_depth.float()
        if read:
            low, high = depth.min().item(), depth.max().item()
            return (255.0 * (depth - low) / (high - low + 1e-6)).to(torch.uint8)
        near, far = depth.min(), depth.max()
        return (255.0 * (depth - near) / (far - near + 1e-6)).to(torch.uint8)

    return step


# Newspapers: what each article is about, by the words in it (ProdLDA).


class Topics(nn.Module):
    """An encoder of word counts, and how often each topic has each word."""

    def __init__(self, words: int, width: int, topics: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Linear(words, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus(), nn.Dropout(0.2))
        self.mean, self.variance = nn.Linear(width, topics), nn.Linear(width, topics)
        self.after_mean, self.after_variance = nn.BatchNorm1d(topics, affine=False), nn.BatchNorm1d(topics, affine=False)
        self.words, self.after_words = nn.Linear(topics, words, bias=False), nn.BatchNorm1d(words, affine=False)

    def forward(self, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.seen(torch.log1p(counts))
        mean, variance = self.after_mean(self.mean(seen)), self.after_variance(self.variance(seen))
        share = torch.softmax(mean + torch.randn_like(mean) * torch.exp(0.5 * variance), -1)
        return self.after_words(self.words(share)), mean, variance


def surprise(logits: Tensor, counts: Tensor, mean: Tensor, variance: Tensor, prior: float) -> Tensor:
    """How badly the words are told, how far from the prior the topics are, and how alike rare words are made."""
    highest = logits.amax(-1, keepdim=True)
    odds = torch.exp(logits - highest)
    told = odds / odds.sum(-1, keepdim=True)
    length = counts.sum(-1, keepdim=True) + 1.0
    weight = torch.sqrt(counts + 0.25) * torch.rsqrt(length)
    words = -(counts * torch.log(told + 1e-10)).sum(-1)
    uneven = (weight * (told - counts / length).square()).sum(-1)
    apart = 0.5 * (variance.exp() / prior + mean.square() / prior - 1.0 + torch.log(torch.full_like(variance, prior)) - variance).sum(-1)
    return (words + 10.0 * uneven + apart).mean()


def newspaper_topics(s: Setup, *, ahead: bool = False, compiled: bool = False, read: bool = True, none: bool = False, autocast: bool = False) -> Step:
    """Word counts come from the host as a dense table; the loss and the perplexity are written down in each step."""
    words, count, topics = s.size(20_000, 50), s.size(1024, 6), s.size(200, 4)
    with s.device:
        model = Topics(words, s.size(512, 8), topics).train()
        total = torch.zeros(2)
    articles: list[tuple[Tensor, ...]] = [(torch.poisson(torch.full((count, words), 0.01)),) for _ in range(4)]
    queue = Prefetcher([(s.pin(part),) for (part,) in articles], s) if ahead else None
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.99, 0.999))
    loss_of, turn, noted = s.compile(surprise) if compiled else surprise, counter(), [0.0, 0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        (counts,) = queue.next() if queue else (articles[next(turn) % len(articles)][0].to(s.device),)
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits, mean, variance = model(counts)
        loss = loss_of(logits.float(), counts, mean.float(), variance.float(), 0.995)
        loss.backward()
        optimizer.step()
        perplexity = torch.exp(loss.detach() * count / counts.sum())
        if read:
            noted[0] += loss.item()
            noted[1] += perplexity.item()
        else:
            total.add_(torch.stack([loss.detach(), perplexity]))
        return loss.detach()

    return step


# Wildfires: where a fire will be in some hours, by an ensemble of winds.


def spread_fire(heat: Tensor, fuel: Tensor, slope: Tensor, wind: Tensor, dice: Tensor) -> tuple[Tensor, Tensor]:
    """One moment: the eight neighbours heat a cell as wind and slope will; what is hot enough catches, what burns loses fuel."""
    received = torch.zeros_like(heat)
    for down, right in ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)):
        length = (down * down + right * right) ** 0.5
        along = (wind[:, 0] * down + wind[:, 1] * right) / length
        climb = slope - torch.roll(slope, (down, right), (-2, -1))
        push = torch.exp(0.6 * along + 1.5 * torch.tanh(climb))
        received = received + torch.roll(heat, (down, right), (-2, -1)) * push / length
    chance = 1.0 - torch.exp(-0.25 * received * fuel)
    burning = (heat > 0.05) & (fuel > 0.02)
    caught = (dice < chance) & (fuel > 0.02)
    strength = torch.where(burning, 0.9 * heat + 0.1 * fuel, torch.where(caught, 0.5 * fuel, 0.6 * heat))
    left = torch.where(burning, fuel * (1.0 - 0.08 * strength), fuel)
    return strength.clamp(0.0, 1.0), left.clamp(0.0, 1.0)


def wildfire_ensemble(s: Setup, *, compiled: bool = False, asked: bool = True, kept: bool = False) -> Step:
    """Ten moments of 32 members; after each one asks whether anything still burns, and fetches the wind of the next."""
    members, side, moments = s.size(32, 3), s.size(512, 16), s.size(10, 2)
    with s.device:
        slope, fuel = torch.rand(1, side, side), 0.5 + 0.5 * torch.rand(members, side, side)
        heat = torch.zeros(members, side, side)
        heat[:, side // 2 - 3 : side // 2 + 3, side // 2 - 3 : side // 2 + 3] = 1.0
    winds = torch.randn(moments, members, 2, 1, 1)
    if kept:
        winds = winds.to(s.device)
    moment = s.compile(spread_fire) if compiled else spread_fire

    @torch.no_grad()
    def step() -> Tensor:
        hot, left = heat, fuel
        for n in range(moments):
            dice = torch.rand(hot.shape, device=s.device)
            hot, left = moment(hot, left, slope, winds[n] if kept else winds[n].to(s.device), dice)
            if asked and not (hot > 0.05).any().item():
                break
        return (left < 0.9 * fuel).float().mean(0)

    return step


# Car parks: number plates, read by convolutions, a recurrent network and CTC.


class PlateReader(nn.Module):
    """Columns of a plate, each with odds of every sign."""

    def __init__(self, width: int, signs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inner = 3
        for level, outer in enumerate((width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width)):
            layers += [nn.Conv2d(inner, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
            if level < 4:
                layers.append(nn.MaxPool2d(2 if level < 2 else (2, 1)))
            inner = outer
        self.look = nn.Sequential(*layers)
        self.read = nn.LSTM(2 * inner, 4 * width, 1, bidirectional=True, batch_first=True)
        self.say = nn.Linear(8 * width, signs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.look(x)
        return self.say(self.read(y.flatten(1, 2).transpose(1, 2))[0])


def plate_strings(best: Tensor, sure: Tensor) -> list[tuple[list[int], float]]:
    """Signs without repeats and blanks, and how sure the least sure one is; in plain Python."""
    plates = list[tuple[list[int], float]]()
    for signs, odds in zip(best, sure, strict=True):
        text, least, before = list[int](), 1.0, 0
        for sign, odd in zip(signs.tolist(), odds.tolist(), strict=True):
            if sign not in (before, 0):
                text.append(sign)
                least = min(least, odd)
            before = sign
        plates.append((text, least))
    return plates


def plate_tensors(best: Tensor, sure: Tensor) -> tuple[Tensor, Tensor]:
    """The same, for all plates at once and where they are: signs from the left, then noughts."""
    new = (best != F.pad(best, (1, 0))[:, :-1]) & (best != 0)
    place = torch.where(new, new.long().cumsum(1) - 1, best.shape[1])
    text = best.new_zeros(len(best), best.shape[1] + 1).scatter_(1, place, best)
    return text[:, :-1], torch.where(new, sure, 1.0).amin(1)


def number_plates(s: Setup, *, vector: bool = False, ahead: bool = False, last: bool = False, autocast: bool = False) -> Step:
    """Crops of plates come from the cameras' host as bytes, and are made into text."""
    count, high, wide, signs = s.size(256, 3), s.size(32, 32), s.size(160, 32), s.size(37, 7)
    with s.device:
        model = PlateReader(s.size(64, 4), signs).eval()
    if last:
        model = model.to(memory_format=torch.channels_last)
    crops: list[tuple[Tensor, ...]] = [(torch.randint(256, (count, 3, high, wide), dtype=torch.uint8),) for _ in range(4)]
    queue = Prefetcher([(s.pin(part),) for (part,) in crops], s) if ahead else None
    turn = counter()

    @torch.no_grad()
    def step() -> object:
        torch.set_float32_matmul_precision("high")
        (crop,) = queue.next() if queue else (crops[next(turn) % len(crops)][0].to(s.device),)
        x = crop.float() / 127.5 - 1.0
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            said = model(x)
        sure, best = torch.softmax(said.float(), -1).max(-1)
        return plate_tensors(best, sure) if vector else plate_strings(best, sure)

    return step


WORKLOADS = (
    written(
        "star_coder", "A small StarCoder of 49,153 words in training, bf16 autocast, attention written out; AdamW by a loop; the loss is read in each step.",
        "F.scaled_dot_product_attention; 49,216 words; AdamW(fused=True); the loss not read", star_coder,
        {
            "unfused-attention": {"attention": "sdpa"}, "gemm-alignment": {"padded": True}, "optimizer-foreach": {"fused": True},
            "sync-stall": {"read": False},
        }, gpu_bound=True,
    ),
    written(
        "film_depth", "DPT tells the depth of eight frames at a time, TF32 in NCHW, attention written out; frames are pageable, the nearest and farthest are read.",
        "F.scaled_dot_product_attention; bf16 autocast; pinned frames on a side stream; nothing is read", film_depth,
        {
            "unfused-attention": {"attention": "sdpa"}, "precision": {"autocast": True}, "memcpy": {"ahead": True}, "sync-stall": {"read": False},
        }, gpu_bound=True,
    ),
    written(
        "newspaper_topics", "ProdLDA over 20,000 words in training with TF32; counts come from pageable memory, the loss is many pointwise kernels and is read.",
        "pinned counts on a side stream; torch.compile of the loss; nothing is read; zero_grad(set_to_none=True)", newspaper_topics,
        {"memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"read": False}, "grad-zeroing": {"none": True}},
    ),
    written(
        "wildfire_ensemble", "Ten moments of 32 wildfires on 512 x 512 cells, pointwise kernels over eight neighbours; winds come one by one, each moment asks if all is out.",
        "torch.compile of a moment; nobody asks; all winds on the GPU beforehand", wildfire_ensemble,
        {"unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}, "memcpy": {"kept": True}},
        gpu_bound=True,
    ),
    written(
        "number_plates", "A CRNN reads 256 number plates, TF32 in NCHW; crops are pageable, and row by row the signs are fetched and joined in Python.",
        "signs are joined on the GPU; pinned crops on a side stream; channels_last; bf16 autocast", number_plates,
        {"sync-stall": {"vector": True}, "memcpy": {"ahead": True}, "memory-layout": {"last": True}, "precision": {"autocast": True}},
    ),
)  # fmt: skip
