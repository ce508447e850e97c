"""Public models of exercises, glacier fronts, market stalls and pumps, by an author who has not read the rules."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF, SDPA, with_fused_rms
from .public_models_4 import _public

# Films and words.


class _Coach(nn.Module):
    """X-CLIP against texts that were embedded beforehand: a score of each text for each film."""

    def __init__(self, config: Any, texts: int) -> None:
        from transformers import XCLIPModel

        super().__init__()
        self.clip: Any = XCLIPModel(config)
        self.texts = nn.Parameter(torch.randn(texts, config.projection_dim), requires_grad=False)

    def forward(self, frames: Tensor) -> Tensor:
        clip = self.clip
        films, many = frames.shape[:2]
        seen = clip.get_video_features(frames)
        parts = clip.prompts_visual_layernorm(seen.last_hidden_state[:, 1:]) @ clip.prompts_visual_projection
        parts = parts.view(films, many, -1, parts.shape[-1]).mean(1)
        texts = self.texts.expand(films, -1, -1)
        texts = F.normalize(texts + clip.prompts_generator(texts, parts), dim=-1)
        return clip.logit_scale.exp() * (texts @ F.normalize(seen.pooler_output, dim=-1)[:, :, None])[:, :, 0]  # type: ignore[no-any-return]


def physio_films(
    s: Setup, *, batch: int = 16, ahead: bool = False, graphed: bool = False, late: bool = False, pixels: bool = False, **how: Any
) -> Step:  # fmt: skip
    """X-CLIP in FP16 tells which of 60 exercises are done in 16 films of eight frames; the frames come pinned, the best five are read once."""
    from transformers import XCLIPConfig

    way, films, many, side = How(**{"dtype": HALF if s.cuda else BF16, **how}), s.size(batch, batch // 8), s.size(8, 2), s.size(224, 32)
    width, heads = s.size(768, 32), s.size(12, 2)
    vision = {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": s.size(5, 2), "num_attention_heads": heads, "num_frames": many,
        "image_size": side, "patch_size": 16, "mit_hidden_size": s.size(512, 32), "mit_intermediate_size": s.size(2048, 64),
        "mit_num_attention_heads": s.size(8, 2),
    }  # fmt: skip
    text = {
        "hidden_size": s.size(512, 32), "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": s.size(8, 2),
        "vocab_size": 101, "pad_token_id": 1,
    }  # fmt: skip
    config = XCLIPConfig(
        vision_config=vision, text_config=text, projection_dim=s.size(512, 32), prompt_num_attention_heads=s.size(8, 2), attn_implementation=SDPA
    )
    with s.device:
        model: Any = _Coach(config, s.size(60, 6))
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    shelf = [s.pin(torch.randint(256, (films, many, 3, side, side), dtype=torch.uint8)) for _ in range(4)]
    loader = Prefetcher([(film,) for film in shelf], s) if ahead else None
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)))
    dtype = way.dtype or torch.float32

    def prepared(film: Tensor) -> Tensor:
        return ((film.float() / 255 - mean) / std).to(dtype)

    prepare = s.compile(prepared, dynamic=False) if pixels else prepared
    frames = torch.zeros(films, many, 3, side, side, device=s.device, dtype=dtype)
    best = torch.zeros(films, 5, dtype=torch.long, device=s.device)
    kept = [s.pin(torch.zeros(films, 5, dtype=torch.long)) for _ in range(2)]
    there = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
    turn = 0

    @torch.no_grad()
    def told() -> None:
        best.copy_(run(frames).topk(5).indices)

    tell = capture(told, s) if graphed else told

    @torch.no_grad()
    def step() -> list[list[int]]:
        nonlocal turn
        film = loader.next()[0] if loader else shelf[turn % 4].to(s.device, non_blocking=True)
        frames.copy_(prepare(film))
        tell()
        now, turn = turn % 2, turn + 1
        if not late:
            return best.tolist()  # type: ignore[no-any-return]
        kept[now].copy_(best, non_blocking=True)
        if s.cuda:
            there[now].record()
            if turn > 1:
                there[1 - now].synchronize()
        return kept[1 - now].tolist()  # type: ignore[no-any-return]

    return step


def _whole_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, encoder_hidden_states: Tensor | None = None, **_: Any) -> Any:
    """GroupViTAttention with its products in one kernel."""
    source = hidden_states if encoder_hidden_states is None else encoder_hidden_states

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    q, k, v = heads(self.q_proj(hidden_states)), heads(self.k_proj(source)), heads(self.v_proj(source))
    joined = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, dropout_p=self.dropout if self.training else 0.0)
    return self.out_proj(joined.transpose(1, 2).reshape(hidden_states.shape)), None


def _assigned(self: Any, attn: Tensor, gumbel: bool = True, hard: bool = True) -> Tensor:
    """GroupViTAssignAttention.get_attn with noise that nobody checks on the host."""
    if gumbel and self.training:
        return F.gumbel_softmax(attn, hard=hard, dim=-2)
    soft = attn.softmax(-2)
    return torch.zeros_like(soft).scatter_(-2, soft.argmax(-2, keepdim=True), 1.0) - soft.detach() + soft if hard else soft


def market_stalls(s: Setup, *, fused: bool = False, unasked: bool = False, ahead: bool = False, **how: Any) -> Step:
    """GroupViT learns to group what lies on market stalls from 64 captions, FP32; pictures come as floats, and the loss is shown each time."""
    from transformers import GroupViTConfig, GroupViTModel

    way = How(**{"optimizer": "loop", **how})
    batch, side, words, length = s.size(64, 4), s.size(224, 64), s.size(49_408, 101), s.size(77, 10)
    vision = {
        "hidden_size": s.size(384, 32), "intermediate_size": s.size(1536, 64), "num_hidden_layers": 4, "depths": [2, 1, 1], "image_size": side,
        "num_group_tokens": [s.size(64, 8), s.size(8, 4), 0], "num_output_groups": [s.size(64, 8), s.size(8, 4), s.size(8, 4)],
        "num_attention_heads": s.size(6, 2),
    }  # fmt: skip
    text = {
        "vocab_size": words, "hidden_size": s.size(256, 32), "intermediate_size": s.size(1024, 64), "num_hidden_layers": s.size(2, 1),
        "num_attention_heads": s.size(4, 2), "max_position_embeddings": length, "bos_token_id": words - 2, "eos_token_id": words - 1,
    }  # fmt: skip
    config = GroupViTConfig(
        vision_config=vision, text_config=text, projection_dim=s.size(256, 32), projection_intermediate_dim=s.size(4096, 64), attn_implementation="eager"
    )
    with s.device:
        model: Any = GroupViTModel(config)
    for module in model.modules():
        if fused and type(module).__name__ == "GroupViTAttention":
            module.forward = MethodType(_whole_attention, module)
        if unasked and type(module).__name__ == "GroupViTAssignAttention":
            module.get_attn = MethodType(_assigned, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.05)
    stalls = []
    for _ in range(4):
        captions = torch.randint(3, words - 2, (batch, length))
        ends = torch.randint(length // 2, length, (batch, 1))
        captions = torch.where(torch.arange(length) < ends, captions, words - 1)
        stalls.append((torch.randn(batch, 3, side, side), captions))
    loader = Prefetcher([(s.pin(pictures), s.pin(captions)) for pictures, captions in stalls], s) if ahead else None
    turn, shown = 0, 0.0
    total = torch.zeros((), device=s.device)

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        pictures, captions = loader.next() if loader else (part.to(s.device) for part in stalls[turn % 4])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            loss = run(input_ids=captions, pixel_values=pictures, return_loss=True).loss
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=4.6052)
        if unasked:
            total.lerp_(loss.detach().float(), 0.05)
        else:
            shown += 0.05 * (loss.item() - shown)
        return shown

    return step


# Land and water.


def glacier_fronts(
    s: Setup, *, batch: int = 16, ahead: bool = False, graphed: bool = False, kept: bool = False, **how: Any
) -> Step:  # fmt: skip
    """DeepLabV3 learns ice, rock, snow and sea from 16 satellite pictures: BF16 autocast, channels last, pinned memory, mirrored on the GPU."""
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.resnet import Bottleneck, ResNet
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead, DeepLabV3

    way = How(**{"autocast": BF16 if s.cuda else None, "channels_last": True, **how})
    many, side, kinds = s.size(batch, batch // 8), s.size(384, 32), 8
    with s.device:
        resnet = ResNet(Bottleneck, [2, 2, 2, 2] if not s.tiny else [1, 1, 1, 1], replace_stride_with_dilation=[False, True, True])
        model: Any = DeepLabV3(IntermediateLayerGetter(resnet, {"layer1" if s.tiny else "layer4": "out"}), DeepLabHead(s.size(2048, 256), kinds))
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    options = {"fused": True} if way.optimizer == "fused" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **options)
    shelf = []
    for _ in range(4):
        scene = torch.randint(256, (many, 3, side, side), dtype=torch.uint8)
        shelf.append((s.pin(scene), s.pin(torch.randint(kinds, (many, side, side), dtype=torch.uint8))))
    loader = Prefetcher(shelf, s) if ahead else None
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    scene, chart = (torch.zeros_like(part, device=s.device) for part in shelf[0])
    total = torch.zeros((), device=s.device)
    turn, shown = 0, 0.0

    def learn() -> None:
        turned = torch.rand(many, 1, 1, device=s.device) < 0.5
        x = torch.where(turned[..., None], scene.flip(-1), scene).contiguous(memory_format=torch.channels_last)
        x = (x.float() / 255 - mean) / std
        labels = torch.where(turned, chart.flip(-1), chart).long()
        optimizer.zero_grad(set_to_none=True)
        with _casting(s, way):
            loss = F.cross_entropy(run(x)["out"], labels)
        loss.backward()
        optimizer.step()
        total.lerp_(loss.detach(), 0.05)

    _precision(way)
    learning = capture(learn, s) if graphed else learn

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        pictures, charts = loader.next() if loader else shelf[turn % 4]
        scene.copy_(pictures, non_blocking=True)
        chart.copy_(charts, non_blocking=True)
        turn += 1
        learning()
        if not kept or turn % 50 == 0:
            shown = total.item()
        return shown

    return step


def pump_meters(
    s: Setup, *, batch: int = 4, packed: bool = False, fused_norms: bool = False, attention: str = "eager", **how: Any
) -> Step:  # fmt: skip
    """TimesFM 2.5 foretells 128 hours of four pumps a call in FP32, each past turned upside down as well; meters are copied one by one."""
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    way, many, past, ahead = How(**how), s.size(batch, batch // 2), s.size(384, 24), s.size(128, 8)
    width, heads = s.size(1280, 32), s.size(16, 2)
    config = TimesFm2_5Config(
        patch_length=s.size(32, 8), context_length=past, horizon_length=ahead, num_hidden_layers=s.size(4, 2), hidden_size=width, intermediate_size=width,
        head_dim=width // heads, num_attention_heads=heads, num_key_value_heads=heads, output_quantile_len=s.size(256, 8), max_position_embeddings=1024,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = TimesFm2_5ModelForPrediction(config)
    if fused_norms:
        with_fused_rms(model)
    model = _placed(s, way, model).eval()
    if way.compiled:
        model.model.forward = s.compile(model.model.forward, mode=way.compiled, dynamic=False)
    days = torch.arange(past) / 24
    calls = [(3 + torch.sin(6.28 * days) + 0.2 * torch.randn(many, past)).abs() for _ in range(8)]
    meters = [s.pin(call) for call in calls] if packed else [[row.clone() for row in call] for call in calls]
    desk = torch.ones(many, past, device=s.device)
    middle, spread = torch.zeros(many, ahead, device=s.device), torch.zeros(many, ahead, 10, device=s.device)
    turn = 0

    @torch.no_grad()
    def foretold() -> None:
        with _casting(s, way):
            told = model(past_values=list(desk))
        middle.copy_(told.mean_predictions)
        spread.copy_(told.full_predictions)

    _precision(way)

    def step() -> tuple[list[list[float]], Tensor]:
        nonlocal turn
        _precision(way)
        call: Any = meters[turn % 8]
        turn += 1
        if packed:
            desk.copy_(call, non_blocking=True)
        else:
            for row, meter in zip(desk, call, strict=True):
                row.copy_(meter)
        foretold()
        return middle.tolist(), spread.cpu()

    return step


WORKLOADS = (
    _public(
        "physio_films", "X-CLIP of transformers, all in fp16 with fused attention, 16 pinned films of 8 frames against 60 texts; one read a step.",
        physio_films, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "unfused-elementwise/pixels": {"pixels": True}, "graph-candidate": {"graphed": True},
         "memcpy": {"ahead": True}, "sync-stall": {"late": True}, "low-arithmetic-intensity": {"batch": 32}},
        shared={"low-arithmetic-intensity": 2.0},
    ),
    _public(
        "market_stalls", "GroupViT of transformers, training in FP32 on 64 pageable pictures; noise is checked on the host; AdamW(foreach=False), a read.",
        market_stalls, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"fused": True}, "sync-stall": {"unasked": True},
         "optimizer-foreach": {"optimizer": "fused"}, "memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "glacier_fronts", "DeepLabV3 of torchvision, training in bf16 autocast, channels last, on 16 pinned pictures of 384; the mean loss is read.",
        glacier_fronts, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"kept": True},
         "memcpy": {"ahead": True}, "graph-candidate": {"graphed": True}, "low-arithmetic-intensity": {"batch": 32}},
        shared={"low-arithmetic-intensity": 2.0},
    ),
    _public(
        "pump_meters", "TimesFM 2.5 of transformers, FP32, on 4 series of 384 hours that are copied one by one; statistics patch by patch, two reads.",
        pump_meters, {},
        {"launch-gap": {"compiled": COMPILED}, "low-arithmetic-intensity": {"batch": 32},
         "unfused-norm": {"fused_norms": True}, "unfused-attention": {"attention": SDPA}, "precision/tf32": {"tf32": True}, "memcpy": {"packed": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
