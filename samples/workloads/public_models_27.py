"""Public models of sounds' tags, photos' captions, gestures and leaves, by an author who has not read the rules."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_4 import _public

# Sounds.


def _clap_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor]:
    """ClapAudioSelfAttention with its products in one kernel; windows that share a mask stand beside each other as heads."""
    many, places, width = hidden_states.shape
    heads, masks = self.num_attention_heads, 1 if attention_mask is None else len(attention_mask)
    bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(places, places, heads).permute(2, 0, 1)[None]
    if attention_mask is not None:
        bias = bias + attention_mask[:, None]

    def split(x: Tensor) -> Tensor:
        return x.view(many // masks, masks, places, heads, -1).transpose(2, 3).reshape(many // masks, masks * heads, places, -1)

    q, k, v = split(self.query(hidden_states)), split(self.key(hidden_states)), split(self.value(hidden_states))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.reshape(1, masks * heads, places, places).to(q.dtype))
    return (out.reshape(many, heads, places, -1).transpose(1, 2).reshape(many, places, width),)


def _mel_bank(bins: int, mels: int, rate: int, low: float, high: float) -> Tensor:
    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + np.asarray(hertz) / 700)

    edges = 700 * (10 ** (np.linspace(mel(low), mel(high), mels + 2) / 2595) - 1)
    at, width = np.linspace(0, rate / 2, bins), np.diff(edges)
    slopes = edges[:, None] - at
    bank = np.maximum(0, np.minimum(-slopes[:-2] / width[:-1, None], slopes[2:] / width[1:, None]))
    return torch.from_numpy(bank.T.astype(np.float32))


def sound_tags(s: Setup, *, words_sent: bool = False, pinned: bool = False, fused: bool = False, **how: Any) -> Step:
    """CLAP names sounds of a field recorder: NumPy makes floats of 16-bit clips and repeats the short ones to ten seconds."""
    from transformers import ClapAudioConfig, ClapAudioModelWithProjection

    way, batch, rate, hop, size = How(**how), s.size(16, 2), s.size(48_000, 800), s.size(480, 80), s.size(1024, 128)
    length, mels = 10 * rate, s.size(64, 32)
    config = ClapAudioConfig(
        num_mel_bins=mels, spec_size=s.size(256, 64), window_size=s.size(8, 2), patch_embeds_hidden_size=s.size(96, 16),
        depths=[2, 2, s.size(4, 2), 2], num_attention_heads=[s.size(4, 2), s.size(8, 2), s.size(16, 2), s.size(32, 2)],
        hidden_size=s.size(768, 128), projection_dim=s.size(512, 32),
    )  # fmt: skip
    model: Any = ClapAudioModelWithProjection(config)
    for module in model.modules():
        if type(module).__name__ == "ClapAudioSelfAttention":
            nn.init.normal_(module.relative_position_bias_table, std=0.02)
            if fused:
                module.forward = MethodType(_clap_attention, module)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    drawn = np.random.default_rng(0)
    clips = [drawn.integers(-9000, 9000, int(drawn.integers(length // 4, length + 1)), dtype=np.int16) for _ in range(3 * batch)]
    names = [f"sound {at}" for at in range(s.size(50, 5))]
    tags = F.normalize(torch.randn(len(names), s.size(512, 32)), dim=-1).to(s.device)
    bank, window = _mel_bank(size // 2 + 1, mels, rate, 50, s.size(14_000, 400)).to(s.device), torch.hann_window(size, device=s.device)
    places, turn = torch.arange(length, device=s.device), 0
    buffer = s.pin(torch.empty(batch, length)) if pinned else None

    def repeated(waves: Any, chosen: list[Any]) -> Any:
        for row, clip in zip(waves, chosen, strict=True):
            many = np.tile(clip.astype(np.float32) / 32768, length // len(clip))
            row[: len(many)] = many
            row[len(many) :] = 0
        return waves

    def there(chosen: list[Any]) -> Tensor:
        if words_sent:
            counts = np.array([len(clip) for clip in chosen])
            table = torch.from_numpy(np.stack([counts, np.cumsum(counts) - counts])).to(s.device)[:, :, None]
            words = torch.from_numpy(np.concatenate(chosen)).to(s.device)
            waves = words[table[1] + places % table[0]].float() / 32768
            return waves * (places < length // table[0] * table[0])
        if buffer is None:
            return torch.from_numpy(repeated(np.empty((batch, length), dtype=np.float32), chosen)).to(s.device)
        repeated(buffer.numpy(), chosen)
        return buffer.to(s.device, non_blocking=True)

    @torch.no_grad()
    def step() -> list[list[str]]:
        nonlocal turn
        _precision(way)
        waves = there([clips[(turn + at) % len(clips)] for at in range(batch)])
        turn += batch
        power = torch.stft(waves, size, hop, window=window, return_complex=True).abs().square()
        features = 10 * (power.transpose(1, 2) @ bank).clamp(min=1e-10).log10()
        with _casting(s, way):
            sounds = run(input_features=features[:, None]).audio_embeds
        scores = F.normalize(sounds.float(), dim=-1) @ tags.T
        return [[names[at] for at in row] for row in scores.topk(3).indices.tolist()]

    return step


# Photos.


def _blip_attention(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    batch, length, width = hidden_states.shape
    q, k, v = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
    return self.projection(out.transpose(1, 2).reshape(batch, length, width)), None


def caption_checks(s: Setup, *, at_once: bool = False, kept: bool = False, fused: bool = False, **how: Any) -> Step:
    """BLIP says which of twelve captions fits a photo best, for one photo of a shop after the other."""
    from transformers import BlipConfig, BlipForImageTextRetrieval

    way, photos, many, length = How(**how), s.size(4, 2), s.size(12, 3), s.size(24, 5)
    words, width, heads, side = s.size(30_524, 101), s.size(768, 32), s.size(12, 2), s.size(384, 32)
    both = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": s.size(8, 2), "num_attention_heads": heads}
    config = BlipConfig(
        text_config={**both, "vocab_size": words, "encoder_hidden_size": width, "bos_token_id": 1, "pad_token_id": 0, "eos_token_id": 2,
                     "sep_token_id": 2},
        vision_config={**both, "image_size": side, "patch_size": 16}, image_text_hidden_size=s.size(256, 16),
    )  # fmt: skip
    with s.device:
        model: Any = BlipForImageTextRetrieval(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "BlipAttention":
                module.forward = MethodType(_blip_attention, module)
    model = _placed(s, way, model).eval()
    look, read = _call(s, way, model.vision_model), _call(s, way, model.text_encoder)
    uploads = [torch.randint(256, (photos, side, side, 3), dtype=torch.uint8) for _ in range(3)]
    drawn = np.random.default_rng(0)
    texts = torch.from_numpy(drawn.integers(3, words, (photos, many, length)))
    texts[..., 0] = 1
    counts = torch.from_numpy(drawn.integers(length // 3, length + 1, (photos, many, 1)))
    masks = (torch.arange(length) < counts).long()
    mean, std = (torch.tensor(colours, device=s.device) for colours in ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)))
    turn = 0

    def chances(photo: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        seen = look(pixel_values=photo).last_hidden_state.repeat_interleave(many, 0)
        everywhere = torch.ones(seen.shape[:2], dtype=torch.long, device=s.device)
        out = read(input_ids=ids, attention_mask=mask, encoder_hidden_states=seen, encoder_attention_mask=everywhere)
        return model.itm_head(out.last_hidden_state[:, 0]).float().softmax(-1)[:, 1]  # type: ignore[no-any-return]

    @torch.no_grad()
    def step() -> list[tuple[int, float]]:
        nonlocal turn
        _precision(way)
        pixels = (uploads[turn % 3].to(s.device).float() / 255 - mean) / std
        pixels = pixels.permute(0, 3, 1, 2).contiguous().to(way.dtype or torch.float32)
        ids, mask = texts.to(s.device), masks.to(s.device)
        turn += 1
        with _casting(s, way):
            if at_once:
                rows = chances(pixels, ids.flatten(0, 1), mask.flatten(0, 1)).view(photos, many).tolist()
            elif kept:
                rows = torch.stack([chances(pixels[at, None], ids[at], mask[at]) for at in range(photos)]).tolist()
            else:
                rows = [chances(pixels[at, None], ids[at], mask[at]).tolist() for at in range(photos)]
        return [max(enumerate(row), key=lambda pair: pair[1]) for row in rows]

    return step


# Films.


def _windows(self: Any, x: Tensor) -> Tensor:
    """ShiftedWindowAttention3d with its products in one kernel; the windows of a film stand beside each other as heads."""
    from torchvision.models.video import swin_transformer as swin

    batch, *real, width = x.shape
    window, shift = swin._get_window_and_shift_size(list(self.shift_size), list(real), list(self.window_size))
    bias = self.get_relative_position_bias(window)
    pad = swin._compute_pad_size_3d(tuple(real), tuple(window))
    x = F.pad(x, (0, 0, 0, pad[2], 0, pad[1], 0, pad[0]))
    padded = tuple(x.shape[1:4])
    if sum(shift):
        x = x.roll([-by for by in shift], (1, 2, 3))
    (depth, height, across), (d, h, w) = (size // by for size, by in zip(padded, window, strict=True)), window
    many, places, heads = depth * height * across, d * h * w, self.num_heads
    x = x.view(batch, depth, d, height, h, across, w, width).permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(batch * many, places, width)
    if sum(shift):
        bias = bias + swin._compute_attention_mask_3d(x, padded, tuple(window), tuple(shift))[:, None]
    qkv = self.qkv(x).view(batch, many, places, 3, heads, -1).permute(3, 0, 1, 4, 2, 5)
    q, k, v = qkv.reshape(3, batch, many * heads, places, -1)
    bias = bias.to(q.dtype).expand(many, -1, -1, -1).reshape(1, many * heads, places, places)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(batch, -1, -1, -1))
    x = self.proj(out.reshape(batch, many, heads, places, -1).transpose(2, 3).reshape(batch * many, places, width))
    x = x.view(batch, depth, height, across, d, h, w, width).permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(batch, *padded, width)
    if sum(shift):
        x = x.roll(list(shift), (1, 2, 3))
    return x[:, : real[0], : real[1], : real[2]].contiguous()


def gesture_films(
    s: Setup, *, bytes_sent: bool = False, ahead: bool = False, fused: bool = False, kept: bool = False, **how: Any
) -> Step:
    """Video Swin learns gestures from films of 16 pictures that are normalised on the host, in BF16 autocast; the loss is logged."""
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    way, batch, side, kinds = How(**{"autocast": BF16, "optimizer": "loop", **how}), s.size(4, 2), s.size(224, 32), s.size(27, 5)
    model: Any = SwinTransformer3d(
        patch_size=[2, 4, 4], embed_dim=s.size(96, 16), depths=[2, 2, s.size(6, 2), 2], num_heads=[s.size(3 << at, 2) for at in range(4)],
        window_size=[s.size(8, 2), s.size(7, 4), s.size(7, 4)], stochastic_depth_prob=0.0, num_classes=kinds,
    )  # fmt: skip
    if fused:
        for module in model.modules():
            if type(module).__name__ == "ShiftedWindowAttention3d":
                module.forward = MethodType(_windows, module)
    model = _placed(s, way, model).train()
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.02)
    films = [torch.randint(256, (batch, 3, s.size(16, 4), side, side), dtype=torch.uint8) for _ in range(4)]
    labels = [torch.randint(kinds, (batch,)) for _ in range(4)]
    colours = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 1, 3, 1, 1, 1)
    (mean, std), (mean_there, std_there) = colours, colours.to(s.device)
    ready = [(s.pin((film.float() / 255 - mean) / std), s.pin(label)) for film, label in zip(films, labels, strict=True)] if ahead else []
    loader = Prefetcher(ready, s) if ready else None
    turn, total, seen = 0, torch.zeros((), device=s.device), 0.0

    def batch_there() -> tuple[Tensor, ...]:
        nonlocal turn
        if loader:
            return loader.next()
        film, label = films[turn % 4], labels[turn % 4].to(s.device)
        turn += 1
        if bytes_sent:
            return (film.to(s.device).float() / 255 - mean_there) / std_there, label
        return ((film.float() / 255 - mean) / std).to(s.device), label

    def step() -> Any:
        nonlocal seen
        _precision(way)
        x, y = batch_there()
        optimizer.zero_grad()
        with _casting(s, way):
            loss = F.cross_entropy(model(x).float(), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        if kept:
            return total.add_(loss.detach())
        seen += loss.item()
        return seen

    return step


# Leaves.


def leaf_sequencer(s: Setup, *, graphed: bool = False, pinned: bool = False, **how: Any) -> Step:
    """Sequencer, whose LSTMs read pictures by rows and columns, learns leaves in FP32; the loss and the hits are read in each step."""
    import timm

    way, batch, side, kinds = How(**how), s.size(32, 2), s.size(224, 56), s.size(99, 5)
    small: dict[str, Any] = {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 32), "hidden_sizes": (4, 8, 8, 8)} if s.tiny else {}
    model = _placed(s, way, timm.create_model("sequencer2d_s", pretrained=False, num_classes=kinds, **small)).train()
    more = {"capturable": True} if graphed and s.cuda else {}
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.05, **more)
    photos = [torch.randn(batch, 3, side, side) for _ in range(4)]
    labels = [torch.randint(kinds, (batch,)) for _ in range(4)]
    if pinned:
        photos, labels = [s.pin(part) for part in photos], [s.pin(part) for part in labels]
    x, y = torch.zeros_like(photos[0], device=s.device), torch.zeros_like(labels[0], device=s.device)
    noted, turn, log = torch.zeros(2, device=s.device), 0, [0.0, 0.0]

    def learn(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(x).float()
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return torch.stack([loss.detach(), (logits.argmax(-1) == y).float().mean()])

    def held() -> None:
        noted.copy_(learn(x, y))

    _precision(way)
    replay = capture(held, s) if graphed else None

    def step() -> list[float]:
        nonlocal turn
        _precision(way)
        photo, label = photos[turn % 4], labels[turn % 4]
        turn += 1
        if replay:
            x.copy_(photo)
            y.copy_(label)
            replay()
            now = noted
        else:
            there, label = photo.to(s.device, non_blocking=pinned), label.to(s.device, non_blocking=pinned)
            now = learn(there.contiguous(memory_format=torch.channels_last) if way.channels_last else there, label)
        loss, hits = now.tolist()
        log[0] += loss
        log[1] += hits
        return log

    return step


WORKLOADS = (
    _public(
        "sound_tags", "CLAP of transformers, FP32, tags 16 clips of sound that NumPy turns into floats and repeats; windows' attention written out.",
        sound_tags, {},
        {"host-bound": {"words_sent": True}, "memcpy": {"pinned": True}, "unfused-attention": {"fused": True}, "precision/tf32": {"tf32": True},
         "precision": {"autocast": BF16}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "caption_checks", "BLIP of transformers, FP32, weighs 12 captions for each of 4 photos, photo by photo; attention written out.",
        caption_checks, {},
        {"sync-stall": {"kept": True}, "launch-gap": {"at_once": True}, "unfused-attention": {"fused": True}, "precision/tf32": {"tf32": True},
         "precision": {"dtype": BF16}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "gesture_films", "Video Swin of torchvision, training in bf16 autocast on 4 films that the host normalises; AdamW parameter by parameter.",
        gesture_films, {},
        {"host-bound": {"bytes_sent": True}, "data-loading": {"ahead": True}, "unfused-attention": {"fused": True},
         "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"kept": True}},
    ),
    _public(
        "leaf_sequencer", "Sequencer of timm, training in FP32 on 32 pageable pictures: LSTMs along rows and columns; loss and hits are read.",
        leaf_sequencer, {},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"},
         "memcpy": {"pinned": True}, "memory-layout": {"channels_last": True}, "graph-candidate": {"graphed": True}},
    ),
)  # fmt: skip
