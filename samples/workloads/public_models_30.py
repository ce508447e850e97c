"""Public models of abstracts, recipes' forums, coins and painted pixels, by an author who has not read the rules."""

from __future__ import annotations

from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import SDPA, with_fused_rms
from .public_models_4 import _public

# Texts.


def vaccine_abstracts(
    s: Setup, *, once: bool = False, kept: bool = False, pinned: bool = False, attention: str = "eager", **how: Any
) -> Step:  # fmt: skip
    """BioGPT is fine-tuned on padded abstracts in BF16 autocast: four micro-batches a step, gradients clipped, every loss written down."""
    from transformers import BioGptConfig, BioGptForCausalLM

    way, words, width, parts = How(**{"autocast": BF16, **how}), s.size(42_384, 101), s.size(1024, 32), 4
    batch, length = s.size(16, 2), s.size(256, 12)
    config = BioGptConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(4, 2), num_attention_heads=s.size(16, 2), intermediate_size=4 * width,
        max_position_embeddings=s.size(1024, 32), attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = BioGptForCausalLM(config)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 5000)
    shelf = []
    for _ in range(4 * parts):
        ids = torch.randint(3, words, (batch, length))
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))).long()
        mask[0] = 1
        part = (ids * mask + (1 - mask), mask, torch.where(mask == 1, ids, -100))
        shelf.append(tuple(s.pin(tensor) for tensor in part) if pinned else part)
    turn, log, sums = 0, [0.0, 0.0], torch.zeros(2, device=s.device)

    def micro() -> None:
        nonlocal turn
        ids, mask, labels = (part.to(s.device, non_blocking=pinned) for part in shelf[turn % len(shelf)])
        turn += 1
        with nullcontext() if once else _casting(s, way):
            loss = run(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss / parts
        loss.backward()
        if kept:
            sums[0] += loss.detach()
        else:
            log[0] += loss.item()

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way) if once else nullcontext():
            for _ in range(parts):
                micro()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        if kept:
            sums[1] += norm
        else:
            log[1] += norm.item()
        optimizer.step()
        schedule.step()

    return step


def sourdough_forum(s: Setup, *, fused_norms: bool = False, attention: str = "eager", **how: Any) -> Step:
    """LFM2, short convolutions and a little attention, goes on learning a bakers' forum with everything in BF16; the loss is shown."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    way = How(**{"dtype": BF16, "optimizer": "loop", "zero": True, "read_loss": True, **how})
    words, width, batch, length = s.size(65_536, 101), s.size(1024, 32), s.size(4, 2), s.size(768, 12)
    kinds = ["conv", "conv", "full_attention", "conv", "full_attention"]
    config = Lfm2Config(
        vocab_size=words, hidden_size=width, intermediate_size=s.size(4608, 64), num_hidden_layers=len(kinds), layer_types=kinds,
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(8, 2), block_auto_adjust_ff_dim=False, max_position_embeddings=4096,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = Lfm2ForCausalLM(config)
    if fused_norms:
        with_fused_rms(model)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    posts = torch.randint(3, words, (s.size(64, 4), batch, length), device=s.device)
    turn, shown, total = 0, 0.0, torch.zeros((), device=s.device)

    def step() -> Any:
        nonlocal turn, shown
        _precision(way)
        ids = posts[turn % len(posts)]
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        if way.read_loss:
            shown = 0.98 * shown + 0.02 * loss.item()
            return shown
        return total.lerp_(loss.detach().float(), 0.02)

    return step


# Pictures.


def _cvt_attention(self: Any, hidden_state: Tensor, height: int, width: int) -> Tensor:
    """CvtSelfAttention with its products in one kernel."""
    head = None
    if self.with_cls_token:
        head, hidden_state = torch.split(hidden_state, [1, height * width], 1)
    batch, _, channels = hidden_state.shape
    grid = hidden_state.permute(0, 2, 1).view(batch, channels, height, width)

    def heads(convolved: Any, linear: Any) -> Tensor:
        x = convolved(grid)
        x = linear(x if head is None else torch.cat((head, x), 1))
        return x.view(batch, x.shape[1], self.num_heads, -1).transpose(1, 2)

    q = heads(self.convolution_projection_query, self.projection_query)
    k = heads(self.convolution_projection_key, self.projection_key)
    v = heads(self.convolution_projection_value, self.projection_value)
    return F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).reshape(batch, -1, self.embed_dim)


def coin_hoards(s: Setup, *, fused: bool = False, ahead: bool = False, **how: Any) -> Step:
    """CvT turns photographs of a hoard's coins into vectors in FP32 and finds the nearest five types of a catalogue for each."""
    from transformers import CvtConfig, CvtModel

    way, batch, side, many = How(**how), s.size(64, 2), s.size(224, 32), s.size(20_000, 40)
    widths = [s.size(64, 8), s.size(192, 16), s.size(384, 32)]
    config = CvtConfig(embed_dim=widths, num_heads=[1, s.size(3, 2), s.size(6, 2)], depth=[1, 2, s.size(6, 3)], drop_path_rate=[0.0, 0.0, 0.1])
    with s.device:
        model: Any = CvtModel(config, add_pooling_layer=False)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "CvtSelfAttention":
                module.forward = MethodType(_cvt_attention, module)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    photos = [torch.randint(256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    loader = Prefetcher([(s.pin(photo),) for photo in photos], s) if ahead else None
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    catalogue = F.normalize(torch.randn(many, widths[-1], device=s.device), dim=-1)
    turn = 0

    @torch.no_grad()
    def step() -> list[list[int]]:
        nonlocal turn
        _precision(way)
        photo = loader.next()[0] if loader else photos[turn % 4].to(s.device)
        turn += 1
        x = (photo.float() / 255 - mean) / std
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            vectors = run(pixel_values=x).cls_token_value[:, 0]
        scores = F.normalize(vectors.float(), dim=-1) @ catalogue.T
        return scores.topk(5).indices.tolist()  # type: ignore[no-any-return]

    return step


class _Canvas:
    """Keys and values of all pixels of a picture, of which those up to `at` are painted."""

    def __init__(self, layers: int, shape: tuple[int, ...], device: torch.device) -> None:
        self.keys, self.values = ([torch.zeros(shape, device=device) for _ in range(layers)] for _ in range(2))
        self.at = torch.zeros(1, dtype=torch.long, device=device)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if key.shape[2] > 1:
            self.keys[layer][:, :, : key.shape[2]] = key
            self.values[layer][:, :, : key.shape[2]] = value
            return key, value
        self.keys[layer].index_copy_(2, self.at, key)
        self.values[layer].index_copy_(2, self.at, value)
        return self.keys[layer], self.values[layer]


class _Painter(nn.Module):
    """ImageGPT with a mask of one's own: logits of the last of the pixels that are handed in."""

    def __init__(self, config: Any) -> None:
        from transformers import ImageGPTForCausalImageModeling

        super().__init__()
        self.gpt: Any = ImageGPTForCausalImageModeling(config)

    def forward(self, pixels: Tensor, places: Tensor, canvas: _Canvas, mask: Tensor | None = None) -> Tensor:
        body = self.gpt.transformer
        hidden = body.wte(pixels) + body.wpe(places)
        for block in body.h:
            hidden = block(hidden, canvas, mask)[0]
        return self.gpt.lm_head(body.ln_f(hidden[:, -1]))  # type: ignore[no-any-return]


def _pixel_attention(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, *_: Any) -> tuple[Tensor, ...]:
    """ImageGPTAttention._attn, whose least number does not come from the host."""
    weights = query @ key.transpose(-1, -2) / value.size(-1) ** 0.5
    asked, known = query.size(-2), key.size(-2)
    weights = weights.masked_fill(~self.bias[:, :, known - asked : known, :known], torch.finfo(weights.dtype).min)
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = weights.softmax(-1).to(value.dtype)
    return weights @ value, weights


def _pixel_norm(self: Any, tensor: Tensor) -> Tensor:
    return F.rms_norm(tensor, self.weight.shape, self.weight, self.eps)


def torn_postcards(
    s: Setup, *, batch: int = 4, there: bool = False, graphed: bool = False, fused_norms: bool = False, kept: bool = False, **how: Any
) -> Step:
    """ImageGPT paints the next twelve pixels of four torn postcards in FP32; each pixel is sent to the window as soon as it is drawn."""
    from transformers import ImageGPTConfig

    way, colours, width, heads, layers = How(**how), s.size(512, 32), s.size(512, 32), s.size(8, 2), s.size(6, 2)
    many, known, new = s.size(batch, batch // 2), s.size(320, 12), s.size(12, 3)
    longest = known + new
    config = ImageGPTConfig(
        vocab_size=colours + 1, n_positions=s.size(1024, 32), n_embd=width, n_layer=layers, n_head=heads, activation_function="quick_gelu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    with s.device:
        model: Any = _Painter(config)
    for module in model.modules():
        if type(module).__name__ == "ImageGPTLayerNorm":
            nn.init.ones_(module.weight)
            if fused_norms:
                module.forward = MethodType(_pixel_norm, module)
        if type(module).__name__ == "ImageGPTAttention" and (there or graphed):
            module._attn = MethodType(_pixel_attention, module)
    model = _placed(s, way, model).eval()
    run = s.compile(model, mode=way.compiled, dynamic=False) if way.compiled else model
    canvas = _Canvas(layers, (many, heads, longest, width // heads), s.device)
    postcards = torch.randint(colours, (8, many, known), device=s.device)
    pixel, places = torch.zeros(many, 1, dtype=torch.long, device=s.device), torch.arange(longest, device=s.device)
    before = places[None, :known]
    turn, window = 0, list[list[int]]()

    def drawn(logits: Tensor) -> None:
        chances = (logits[:, :colours] / 0.9).softmax(-1)
        pixel.copy_((chances / torch.empty_like(chances).exponential_()).argmax(-1, keepdim=True))

    @torch.no_grad()
    def further() -> None:
        mask = torch.zeros(1, 1, 1, longest, device=s.device).masked_fill(places > canvas.at, torch.finfo(torch.float32).min)
        drawn(run(pixel, canvas.at[None], canvas, mask))
        canvas.at.add_(1)

    _precision(way)
    paint = capture(further, s) if graphed else further

    @torch.no_grad()
    def step() -> list[list[int]]:
        nonlocal turn
        _precision(way)
        window.clear()
        canvas.at.fill_(known)
        drawn(run(postcards[turn % 8], before, canvas))
        turn += 1
        pixels = []
        for at in range(new):
            if kept:
                pixels.append(pixel.clone())
            else:
                window.append(pixel[:, 0].tolist())
            if at < new - 1:
                paint()
        if kept:
            window.extend(torch.cat(pixels, 1).T.tolist())
        return window

    return step


WORKLOADS = (
    _public(
        "vaccine_abstracts", "BioGPT of transformers, fine-tuning in bf16 autocast: 4 micro-batches of 16 x 256, a context each; five reads.",
        vaccine_abstracts, {},
        {"dtype-casts": {"once": True}, "unfused-attention": {"attention": SDPA}, "unfused-elementwise": {"compiled": COMPILED},
         "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"kept": True}, "memcpy": {"pinned": True}},
    ),
    _public(
        "sourdough_forum", "LFM2 of transformers, training all in bf16 on 4 x 768 words; AdamW(foreach=False), gradients filled with zeros, a read.",
        sourdough_forum, {},
        {"optimizer-foreach": {"optimizer": "fused"}, "unfused-elementwise": {"compiled": COMPILED}, "unfused-norm": {"fused_norms": True},
         "unfused-attention": {"attention": SDPA}, "grad-zeroing": {"zero": False}, "sync-stall": {"read_loss": False}},
    ),
    _public(
        "coin_hoards", "CvT of transformers, FP32, turns 64 pageable photographs into vectors; attention written out; 20,000 types are searched.",
        coin_hoards, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"fused": True},
         "unfused-elementwise": {"compiled": COMPILED}, "memory-layout": {"channels_last": True}, "memcpy": {"ahead": True}},
    ),
    _public(
        "torn_postcards", "ImageGPT of transformers, FP32, paints twelve pixels of 4 postcards one by one; norms written out, each pixel is read.",
        torn_postcards, {},
        {"launch-gap": {"compiled": COMPILED}, "graph-candidate": {"graphed": True}, "unfused-norm": {"fused_norms": True},
         "memcpy": {"there": True}, "sync-stall": {"kept": True}, "low-arithmetic-intensity": {"batch": 32}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
