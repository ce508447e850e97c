"""Public models of families and tasks that the modules before have not, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload
from .public_models import BF16, COMPILED, How, _images, _timm, _tokens, _vision, inference, training
from .public_models_2 import HALF, SDPA

# Text.


def neox_generate(s: Setup, *, batch: int = 1, stream: bool = True, attention: str = "eager", dtype: torch.dtype | None = None) -> Step:
    """Greedy words after a prompt, with a cache; each is handed to the reader as soon as it is there."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    words = s.size(50304, 101)
    config = GPTNeoXConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation=attention,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config).eval().to(s.device, dtype)
    prompt = torch.randint(words, (1, s.size(128, 8)), device=s.device).expand(batch, -1)

    @torch.no_grad()
    def step() -> list[Any]:
        torch.set_float32_matmul_precision("highest")
        said, read, cache = [], prompt, None
        for _ in range(s.size(12, 3)):
            out = model(input_ids=read, past_key_values=cache, use_cache=True, logits_to_keep=1)
            read, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            said.append(read.tolist() if stream else read)
        return said if stream else torch.cat(said, 1).tolist()

    return step


def deberta(s: Setup, **how: Any) -> Step:
    """Disentangled attention: two further products with the positions' embeddings, gathered word by word."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    words = s.size(128_100, 101)
    config = DebertaV2Config(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), relative_attention=True, position_buckets=s.size(256, 8), norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=512, type_vocab_size=0, num_labels=3,
    )  # fmt: skip
    ids, labels = _tokens(s, 16, 192, words), torch.randint(3, (s.size(16, 2),), device=s.device)
    return training(s, How(**how), DebertaV2ForSequenceClassification(config), lambda model: model(input_ids=ids, labels=labels).loss)


def longformer(s: Setup, *, batch: int = 2, **how: Any) -> Step:
    """Windows of 512 words, and a first word that sees all."""
    from transformers import LongformerConfig, LongformerModel

    words, length = s.size(50265, 101), s.size(4096, 64)
    config = LongformerConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attention_window=s.size(512, 16), max_position_embeddings=length + 2, pad_token_id=1,
    )  # fmt: skip
    ids = torch.randint(2, words, (s.size(batch, 1), length), device=s.device)
    first = torch.zeros_like(ids)
    first[:, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "global_attention_mask": first}
    return inference(s, How(**how), LongformerModel(config), inputs)


def mamba(s: Setup, *, batch: int = 4, **how: Any) -> Step:
    """Without mamba_ssm the state goes word by word."""
    from transformers import MambaConfig, MambaForCausalLM

    words = s.size(50280, 101)
    config = MambaConfig(vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), use_cache=False)
    ids = torch.randint(words, (s.size(batch, 1), s.size(48, 6)), device=s.device)
    return inference(s, How(**how), MambaForCausalLM(config), {"input_ids": ids, "use_cache": False})  # type: ignore[dict-item]


class Translator(nn.Module):
    """PyTorch's own tutorial of translation: nn.Transformer, words first, masks made for each batch."""

    def __init__(self, width: int, heads: int, layers: int, words: int) -> None:
        super().__init__()
        self.core = nn.Transformer(width, heads, layers, layers, dim_feedforward=width, dropout=0.0)
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.generator = nn.Linear(width, words)
        self.masks: tuple[Tensor, ...] | None = None

    def masked(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        length = len(target)
        future = (torch.triu(torch.ones((length, length), device=target.device)) == 1).transpose(0, 1)
        future = future.float().masked_fill(future == 0, float("-inf")).masked_fill(future == 1, 0.0)
        past = torch.zeros((len(source), len(source)), device=source.device)
        padding = [torch.zeros(ids.shape, device=ids.device).masked_fill(ids == 1, float("-inf")).transpose(0, 1) for ids in (source, target)]
        return past, future, *padding

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        past, future, left, right = self.masks or self.masked(source, target)
        out = self.core(self.source(source), self.target(target), past, future, None, left, right, left)
        return self.generator(out)


def translation(s: Setup, *, masks_once: bool = False, **how: Any) -> Step:
    words, length, batch = s.size(10_837, 53), s.size(30, 5), s.size(128, 2)
    model = Translator(s.size(512, 16), s.size(8, 2), s.size(3, 1), words)
    source, target = (torch.randint(2, words, (size, batch), device=s.device) for size in (length, length + 1))
    if masks_once:
        model.masks = model.masked(source, target[:-1])

    def loss(model: Any) -> Tensor:
        scores = model(source, target[:-1])
        return F.cross_entropy(scores.flatten(0, 1), target[1:].flatten(), ignore_index=1)

    return training(s, How(**how), model, loss, torch.optim.Adam, betas=(0.9, 0.98), eps=1e-9)


class Words(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(words, width), nn.LSTM(width, width, 2)
        self.decoder = nn.Linear(width, words)

    def forward(self, ids: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, hidden = self.rnn(self.encoder(ids), hidden)
        return F.log_softmax(self.decoder(out).flatten(0, 1), 1), hidden


def word_language_model(
    s: Setup, *, read: bool = True, by_hand: bool = True, zero: bool = True, autocast: bool = False, words: int = 33_278
) -> Step:
    """PyTorch's example of that name: the state is carried on, norms are clipped, the parameters go down by a loop."""
    batch, length, width = s.size(20, 2), s.size(35, 4), s.size(650, 16)
    model = Words(s.size(words, 51), width).to(s.device)
    ids = torch.randint(s.size(33_278, 51), (length + 1, batch), device=s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    total, hidden = 0.0, (torch.zeros(2, batch, width, device=s.device), torch.zeros(2, batch, width, device=s.device))

    def step() -> None:
        nonlocal total, hidden
        torch.set_float32_matmul_precision("high")
        model.zero_grad(set_to_none=not zero)
        hidden = (hidden[0].detach(), hidden[1].detach())
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores, hidden = model(ids[:-1], hidden)
            loss = F.nll_loss(scores, ids[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        if by_hand:
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-1.0)  # type: ignore[arg-type]
        else:
            optimizer.step()
        if read:
            total += loss.item()

    return step


# Pictures and films.


def _sdpa_of_maxvit(self: Any, x: Tensor) -> Tensor:
    """torchvision's attention with a bias for each relative position, by the library's function."""
    batch, groups, patches, _ = x.shape
    q, k, v = (y.reshape(batch * groups, patches, self.n_heads, self.head_dim).transpose(1, 2) for y in self.to_qkv(x).chunk(3, -1))
    bias = self.get_relative_positional_bias().to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale_factor)
    return self.merge(out.transpose(1, 2).reshape(batch, groups, patches, -1))


def maxvit(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    from torchvision.models.maxvit import MaxVit, RelativePositionalMultiHeadAttention

    model = MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=10) if s.tiny else _vision("maxvit_t")
    if attention == SDPA:
        for module in model.modules():
            if isinstance(module, RelativePositionalMultiHeadAttention):
                module.forward = MethodType(_sdpa_of_maxvit, module)
    way = How(**how)
    return inference(s, way, model, (_images(s, way, 32, 224, 64, way.dtype),))


def mobilevit(s: Setup, **how: Any) -> Step:
    way = How(**how)
    images, labels = _images(s, way, 64, 256, 64), torch.randint(1000, (s.size(64, 2),), device=s.device)
    images = images[: len(labels)]
    model = _timm("mobilevit_xxs" if s.tiny else "mobilevit_xs")
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def ssd(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """Pictures come from the host one by one; the boxes of each are matched with 8732 of the model's own."""
    from torchvision.models.detection import ssd300_vgg16, ssdlite320_mobilenet_v3_large

    count, boxes = s.size(12, 2), 6
    pictures = [torch.rand(3, 300, 300) for _ in range(count)]
    if pinned:
        pictures = [s.pin(picture) for picture in pictures]
    corners = torch.rand(count, boxes, 2, 2, device=s.device).mul(150).cumsum(2).flatten(2) + torch.tensor([0.0, 0.0, 1.0, 1.0], device=s.device)
    targets = [{"boxes": box, "labels": torch.randint(1, 21, (boxes,), device=s.device)} for box in corners]

    def loss(model: Any) -> Tensor:
        losses = model([picture.to(s.device, non_blocking=pinned) for picture in pictures], targets)
        return sum(losses.values(), torch.zeros((), device=s.device))

    model = (ssdlite320_mobilenet_v3_large if s.tiny else ssd300_vgg16)(weights=None, weights_backbone=None, num_classes=21)
    return training(s, How(**how), model, loss, torch.optim.SGD, momentum=0.9)


def detr(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Its frozen batch norms are written out."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        layer_type="basic", depths=[s.size(2, 1)] * 4, hidden_sizes=[64, 128, 256, 512], embedding_size=64, out_features=["stage4"]
    )
    config = DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=s.size(256, 32),
        encoder_layers=s.size(6, 1), decoder_layers=s.size(6, 1), encoder_ffn_dim=s.size(2048, 64), decoder_ffn_dim=s.size(2048, 64),
        attn_implementation="eager",
    )  # fmt: skip
    way, model = How(**how), DetrForObjectDetection(config)
    model.config._attn_implementation = attention  # asked of the whole, the backbone would refuse it
    images = _images(s, way, 8, 800, 64)
    return inference(s, way, model, {"pixel_values": images, "pixel_mask": torch.ones_like(images[:, 0], dtype=torch.long)})


def videomae(s: Setup, *, attention: str = "eager", pinned: bool = False, **how: Any) -> Step:
    """Nine tenths of a film are hidden and drawn; films come from the host."""
    from transformers import VideoMAEConfig, VideoMAEForPreTraining

    side, frames, batch = s.size(224, 32), s.size(16, 4), s.size(4, 1)
    config = VideoMAEConfig(
        image_size=side, num_frames=frames, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), decoder_num_attention_heads=s.size(6, 2), decoder_hidden_size=s.size(384, 24),
        decoder_num_hidden_layers=s.size(4, 1), decoder_intermediate_size=s.size(1536, 48), attn_implementation=attention,
    )  # fmt: skip
    patches = (side // 16) ** 2 * (frames // 2)
    hidden = torch.rand(patches).argsort() < round(0.9 * patches)
    hidden = hidden.expand(batch, -1).contiguous().to(s.device)
    films = torch.randn(batch, frames, 3, side, side)
    films = s.pin(films) if pinned else films

    def loss(model: Any) -> Tensor:
        return model(pixel_values=films.to(s.device, non_blocking=pinned), bool_masked_pos=hidden).loss

    return training(s, How(**how), VideoMAEForPreTraining(config), loss)


# A diffusion transformer, as its authors wrote it on timm's parts.


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        from timm.models.vision_transformer import Attention, Mlp

        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attn = Attention(width, num_heads=heads, qkv_bias=True)
        self.mlp = Mlp(width, 4 * width, act_layer=partial(nn.GELU, approximate="tanh"))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).unsqueeze(1).chunk(6, -1)
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, side: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed, self.label = nn.Conv2d(4, width, 2, 2), nn.Embedding(1001, width)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.position = nn.Parameter(torch.randn(1, (side // 2) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 16)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(128, device=t.device) * (-9.21 / 128))
        c = self.time(torch.cat([angles.cos(), angles.sin()], 1)) + self.label(y)
        batch, _, height, width = x.shape
        x = self.embed(x).flatten(2).mT + self.position
        for block in self.blocks:
            x = block(x, c)
        x = self.head(self.norm(x)).view(batch, height // 2, width // 2, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(batch, 4, height, width)


def dit(s: Setup, *, compiled: bool = False, adam: str = "foreach", mean: str = "loop", zero: bool = False) -> Step:
    """Training with a running mean of the weights."""
    side, batch = s.size(32, 8), s.size(48, 2)
    model = DiT(side, s.size(384, 24), s.size(6, 2), s.size(6, 1)).to(s.device)
    average = copy.deepcopy(model).requires_grad_(False)
    called = s.compile(model) if compiled else model
    kind: dict[str, Any] = {adam: True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, **kind)
    x, noise = torch.randn(2, batch, 4, side, side, device=s.device)
    t, y = torch.rand(batch, 1, 1, 1, device=s.device), torch.randint(1000, (batch,), device=s.device)

    def step() -> None:
        with torch.autocast(s.device.type, BF16):
            drawn = called((1 - t) * x + t * noise, 1000 * t.flatten(), y)
            loss = F.mse_loss(drawn.float(), noise - x)
        optimizer.zero_grad(set_to_none=not zero)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if mean == "loop":
                now = dict(model.named_parameters())
                for name, value in average.named_parameters():
                    value.mul_(0.9999).add_(now[name].data, alpha=1 - 0.9999)
            else:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - 0.9999)

    return step


# Sound, series and molecules.


def encodec(s: Setup, *, batch: int = 1, plain_weights: bool = False, sizes_on_host: bool = False, **how: Any) -> Step:
    """A second of sound to codes and back. Weights are normed in each call; sizes of the padding are buffers of the model."""
    from torch.nn.utils import parametrize
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(EncodecConfig(num_filters=s.size(32, 4), hidden_size=s.size(128, 32), codebook_dim=s.size(128, 32), codebook_size=s.size(1024, 16)))
    sound = torch.randn(s.size(batch, 1), 1, s.size(24_000, 1600), device=s.device)
    for name, buffer in model.named_buffers():
        if name.endswith("codebook.embed"):
            buffer.normal_()
    for module in model.modules():
        if plain_weights and parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    step = inference(s, How(**how), model, {"input_values": sound, "bandwidth": 6.0})  # type: ignore[dict-item]
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if sizes_on_host and name in ("stride", "kernel_size", "padding_total"):
                setattr(module, name, buffer.cpu())
    return step


def patchtst(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Seven series by patches of sixteen hours."""
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    past, ahead, batch = s.size(512, 64), s.size(96, 8), s.size(96, 2)
    config = PatchTSTConfig(
        num_input_channels=7, context_length=past, prediction_length=ahead, patch_length=16, patch_stride=8, d_model=s.size(128, 16),
        num_hidden_layers=s.size(3, 1), num_attention_heads=s.size(16, 4), ffn_dim=s.size(256, 32), loss="mse",
        attention_dropout=0.0, ff_dropout=0.0, head_dropout=0.0, attn_implementation=attention,
    )  # fmt: skip
    seen, coming = torch.randn(batch, past, 7, device=s.device), torch.randn(batch, ahead, 7, device=s.device)
    return training(s, How(**how), PatchTSTForPrediction(config), lambda model: model(past_values=seen, future_values=coming).loss)


class Pairs(nn.Module):
    """All pairs of atoms within each molecule, which are known beforehand."""

    edges: Tensor

    def __init__(self, molecules: int, atoms: int) -> None:
        super().__init__()
        within = torch.combinations(torch.arange(atoms)).T
        both = torch.cat([within, within.flip(0)], 1)
        self.register_buffer("edges", (both[:, None] + atoms * torch.arange(molecules)[:, None]).flatten(1))

    def forward(self, pos: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        start, end = self.edges
        return self.edges, (pos[start] - pos[end]).norm(dim=-1)


class Total(nn.Module):
    """Sums by molecule, whose number is given."""

    def __init__(self, molecules: int) -> None:
        super().__init__()
        self.molecules = molecules

    def forward(self, x: Tensor, index: Tensor, dim: int = 0) -> Tensor:
        return x.new_zeros(self.molecules, x.shape[1]).index_add(dim, index, x)


def schnet(s: Setup, *, many: int = 1, known: bool = False, **how: Any) -> Step:
    """Energies, and forces as their gradients, of which the loss takes gradients again."""
    from torch_geometric.nn.models import SchNet

    molecules, atoms = s.size(16, 2) * many, s.size(20, 4)
    model = SchNet(s.size(128, 16), s.size(128, 16), s.size(6, 1), 50, interaction_graph=Pairs(molecules, atoms))
    if known:
        model.readout = Total(molecules)
    z, pos = torch.randint(1, 10, (molecules * atoms,), device=s.device), 3 * torch.randn(molecules * atoms, 3, device=s.device)
    batch = torch.arange(molecules, device=s.device).repeat_interleave(atoms)
    energy, force = torch.randn(molecules, 1, device=s.device), torch.randn_like(pos)

    def loss(model: Any) -> Tensor:
        where = pos.detach().requires_grad_()
        guess = model(z, where, batch)
        pull = -torch.autograd.grad(guess.sum(), where, create_graph=True)[0]
        return F.mse_loss(guess, energy) + 100 * F.mse_loss(pull, force)

    return training(s, How(**how), model, loss, torch.optim.Adam)


Changes = Mapping[str, Any]


def _public(name: str, what: str, make: Callable[..., Step], slow: Changes, alone: Mapping[str, Changes], **more: Any) -> Workload:
    """`alone` by the changes to `slow`."""
    fixes = {fix: partial(make, **{**slow, **change}) for fix, change in alone.items()}
    return Workload(name=name, rule=None, folder="public", what=what, fix="each alone", make_slow=partial(make, **slow), alone=fixes, **more)


WORKLOADS = (
    _public(
        "neox_generate", "GPT-NeoX of transformers, FP32, says twelve words after a prompt of 128; each is read as soon as it is there.",
        neox_generate, {},
        {"sync-stall": {"stream": False}, "low-arithmetic-intensity": {"batch": 8}, "unfused-attention": {"attention": SDPA},
         "precision": {"dtype": HALF}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "deberta_fp32", "DeBERTa v3 of transformers, a classifier trained in FP32 on 16 x 192 words, the loss read in each step.",
        deberta, {"read_loss": True},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "optimizer-foreach": {"optimizer": "fused"},
         "sync-stall": {"read_loss": False}},
    ),
    _public(
        "longformer_fp32", "Longformer of transformers reads 2 x 4096 words in FP32, each by windows.", longformer, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "precision/half": {"dtype": HALF},
         "low-arithmetic-intensity": {"batch": 8}},
        shared={"low-arithmetic-intensity": 4.0},
    ),
    _public(
        "mamba_words", "Mamba of transformers without its kernels, FP32: the state goes through 48 words one by one.", mamba, {},
        {"graph-candidate": {"graph": True}, "low-arithmetic-intensity": {"batch": 32}, "precision": {"dtype": BF16}, "precision/tf32": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "translation_tutorial", "nn.Transformer in training to translate 128 sentences, FP32, Adam parameter by parameter.",
        translation, {"optimizer": "foreach"},
        {"optimizer-foreach": {"optimizer": "fused"}, "precision/tf32": {"tf32": True}, "precision": {"autocast": BF16},
         "launch-gap": {"compiled": COMPILED}, "launch-gap/masks": {"masks_once": True}},
    ),
    _public(
        "word_language_model", "nn.LSTM over 33,278 words in training with TF32; parameters are updated by a loop, the loss is read in each step.",
        word_language_model, {},
        {"sync-stall": {"read": False}, "optimizer-foreach": {"by_hand": False}, "precision": {"autocast": True}, "gemm-alignment": {"words": 33_280},
         "grad-zeroing": {"zero": False}},
    ),
    _public(
        "maxvit_fp16", "MaxViT of torchvision in fp16 on 32 pictures, NCHW: attention with relative positions in windows and in grids.",
        maxvit, {"dtype": HALF},
        {"memory-layout": {"channels_last": True}, "unfused-attention": {"attention": SDPA}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "mobilevit_scaler", "MobileViT of timm, training in fp16 with a GradScaler on 64 pictures, NCHW, gradients filled with zeros.",
        mobilevit, {"autocast": HALF, "scaler": True, "zero": True},
        {"memory-layout": {"channels_last": True}, "amp-scaler-sync": {"optimizer": "fused"}, "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False},
         "grad-zeroing": {"zero": False}},
    ),
    _public(
        "ssd_training", "SSD300 of torchvision on VGG-16, training in FP32 on 12 pictures from pageable memory.", ssd, {},
        {"memcpy": {"pinned": True}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "memory-layout": {"channels_last": True},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "detr_fp32", "DETR of transformers on a small ResNet, FP32, in 8 pictures of 800: frozen batch norms and attention written out.", detr, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision/tf32": {"tf32": True}, "precision": {"autocast": BF16},
         "unfused-attention": {"attention": SDPA}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "videomae_films", "VideoMAE of transformers, training in bf16 autocast on 4 films from pageable memory, attention over 1568 patches written out.",
        videomae, {"autocast": BF16},
        {"unfused-attention": {"attention": SDPA}, "memcpy": {"pinned": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "dit_average", "A diffusion transformer on 48 latents in bf16 autocast; a running mean of the weights is kept tensor by tensor.", dit, {"zero": True},
        {"optimizer-foreach/mean": {"mean": "foreach"}, "optimizer-foreach": {"adam": "fused"}, "unfused-elementwise": {"compiled": True},
         "grad-zeroing": {"zero": False}},
    ),
    _public(
        "encodec_second", "EnCodec of transformers, FP32, one second of sound to codes and back.", encodec, {},
        {"sync-stall": {"sizes_on_host": True}, "launch-gap": {"plain_weights": True}, "low-arithmetic-intensity": {"batch": 8},
         "precision": {"autocast": BF16}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "patchtst_fp32", "PatchTST of transformers, training in FP32 on 96 times seven series: attention of 16 narrow heads written out.", patchtst, {},
        {"unfused-attention": {"attention": SDPA}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True},
         "optimizer-foreach": {"optimizer": "fused"}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "schnet_forces", "SchNet of torch_geometric learns energies and forces of 16 molecules, FP32 with TF32 products.", schnet, {"tf32": True},
        {"sync-stall": {"known": True}, "low-arithmetic-intensity": {"many": 8}, "optimizer-foreach": {"optimizer": "fused"},
         "precision": {"autocast": BF16}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
