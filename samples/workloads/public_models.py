"""Models of public libraries as they are, with random weights, and what each of several fixes gains on its own.

transformers, timm, torchvision and torch_geometric are imported where a program is made: the other samples need none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, Workload, capture

BF16 = torch.bfloat16


@dataclass(frozen=True)
class How:
    """How a program is run; each fix changes one of these."""

    autocast: torch.dtype | None = None
    tf32: bool = False
    compiled: str | None = None
    """The mode of torch.compile."""
    graph: bool = False
    optimizer: str | None = None
    """fused or loop; foreach where None."""
    scaler: bool = False
    zero: bool = False
    """Gradients are filled with zeros, not dropped."""
    read_loss: bool = False
    channels_last: bool = False
    pinned: bool = False
    attention: str = "eager"
    fused_norms: bool = False
    vocabulary: int = 0
    batch: int = 0
    dtype: torch.dtype | None = None


Program = Callable[[Setup, How], Step]


def _casting(s: Setup, how: How) -> AbstractContextManager[Any]:
    return torch.autocast(s.device.type, how.autocast) if how.autocast else nullcontext()


def _precision(how: How) -> None:
    torch.set_float32_matmul_precision("high" if how.tf32 else "highest")


def _placed(s: Setup, how: How, model: nn.Module) -> nn.Module:
    model = model.to(s.device, how.dtype) if how.dtype else model.to(s.device)
    return model.to(memory_format=torch.channels_last) if how.channels_last else model


def _call(s: Setup, how: How, model: nn.Module) -> Callable[..., Any]:
    return s.compile(model, mode=how.compiled) if how.compiled else model


def _optimizer(how: How, parameters: Iterable[Tensor], kind: Callable[..., Any] = torch.optim.AdamW, **options: Any) -> Any:
    if how.optimizer:
        options |= {"fused": True} if how.optimizer == "fused" else {"foreach": False}
    return kind(parameters, lr=1e-4, **options)


def training(s: Setup, how: How, model: nn.Module, loss_of: Callable[[Any], Tensor], kind: Any = torch.optim.AdamW, **options: Any) -> Step:
    """A training step; `loss_of` gets the (compiled) model."""
    model = _placed(s, how, model).train()
    run, optimizer = _call(s, how, model), _optimizer(how, model.parameters(), kind, **options)
    scaler = torch.amp.GradScaler(s.device.type) if how.scaler and s.cuda else None

    def step() -> float:
        _precision(how)
        optimizer.zero_grad(set_to_none=not how.zero)
        with _casting(s, how):
            loss = loss_of(run)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        return loss.item() if how.read_loss else 0.0

    return step


def inference(s: Setup, how: How, model: nn.Module, inputs: dict[str, Tensor] | tuple[Tensor, ...]) -> Step:
    model = _placed(s, how, model).eval()
    run = _call(s, how, model)

    @torch.no_grad()
    def step() -> object:
        _precision(how)
        with _casting(s, how):
            return run(**inputs) if isinstance(inputs, dict) else run(*inputs)

    return capture(step, s) if how.graph else step


def _tokens(s: Setup, batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (s.size(batch, 2), s.size(length, 8)), device=s.device)


def _images(s: Setup, how: How, batch: int, side: int = 224, tiny: int = 64, dtype: torch.dtype | None = None) -> Tensor:
    images = torch.rand(s.size(batch, 2), 3, s.size(side, tiny), s.size(side, tiny), device=s.device, dtype=dtype)
    return images.contiguous(memory_format=torch.channels_last) if how.channels_last else images


# Transformers.


def gpt2(s: Setup, how: How) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    words = s.size(how.vocabulary or 50257, 101)
    config = GPT2Config(
        n_layer=s.size(4, 1), n_embd=s.size(768, 32), n_head=s.size(12, 2), vocab_size=words, attn_implementation=how.attention
    )
    ids = _tokens(s, 8, 512, min(words, s.size(50257, 101)))
    return training(s, how, GPT2LMHeadModel(config), lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def _bert_config(s: Setup, how: How, layers: int = 6) -> Any:
    from transformers import BertConfig

    return BertConfig(
        num_hidden_layers=s.size(layers, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), vocab_size=s.size(30522, 101), attn_implementation=how.attention,
    )  # fmt: skip


def bert_single(s: Setup, how: How) -> Step:
    from transformers import BertModel

    return inference(s, how, BertModel(_bert_config(s, how, 12)), {"input_ids": _tokens(s, 1, 64, s.size(30522, 101))})


def bert_masked(s: Setup, how: How) -> Step:
    from transformers import BertForMaskedLM

    ids = _tokens(s, 8, 128, s.size(30522, 101))
    return training(s, how, BertForMaskedLM(_bert_config(s, how)), lambda model: model(input_ids=ids, labels=ids).loss)


def bert_classifier(s: Setup, how: How) -> Step:
    from transformers import BertForSequenceClassification

    ids, labels = _tokens(s, 8, 64, s.size(30522, 101)), torch.randint(2, (s.size(8, 2),), device=s.device)
    return training(s, how, BertForSequenceClassification(_bert_config(s, how, 4)), lambda model: model(input_ids=ids, labels=labels).loss)


def bert_tokens(s: Setup, how: How) -> Step:
    """Token ids of some kB come from host memory in each step; the GPU is busy for much longer."""
    from transformers import BertModel

    model = _placed(s, how, BertModel(_bert_config(s, how))).eval()
    ids = torch.randint(s.size(30522, 101), (s.size(64, 2), s.size(256, 8)))
    loader = Prefetcher([(s.pin(ids),)], s) if how.pinned else None

    @torch.no_grad()
    def step() -> object:
        return model(input_ids=loader.next()[0] if loader else ids.to(s.device))

    return step


def _rms(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def _with_fused_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if type(module).__name__ in ("LlamaRMSNorm", "T5LayerNorm"):
            module.forward = _rms.__get__(module)
    return model


def _llama(s: Setup, how: How, layers: int, dim: int, inner: int, heads: int, groups: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=s.size(layers, 1), hidden_size=s.size(dim, 32), intermediate_size=s.size(inner, 64),
        num_attention_heads=s.size(heads, 4), num_key_value_heads=s.size(groups, 2), vocab_size=s.size(32000, 101),
        attn_implementation=how.attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return _with_fused_norms(model) if how.fused_norms else model


def llama(s: Setup, how: How) -> Step:
    ids = _tokens(s, 4, 2048, s.size(32000, 101))
    model = _llama(s, how, 3, 1024, 2816, 16, 4)
    return training(s, how, model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def llama_token(s: Setup, how: How) -> Step:
    """One token, as in decoding without a past."""
    ids = torch.randint(s.size(32000, 101), (how.batch or 1, 1), device=s.device)
    with s.device:
        model = _llama(s, how, 4, 4096, 14336, 32, 8)
    return inference(s, how, model, {"input_ids": ids, "use_cache": False})  # type: ignore[dict-item]


def t5(s: Setup, how: How) -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=s.size(3, 1), d_model=s.size(768, 32), d_ff=s.size(3072, 64), num_heads=s.size(12, 2), d_kv=s.size(64, 16),
        vocab_size=s.size(32128, 101), decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    ids, labels = _tokens(s, 16, 512, s.size(32128, 101)), _tokens(s, 16, 128, s.size(32128, 101))
    model = _with_fused_norms(model) if how.fused_norms else model
    return training(s, how, model, lambda model: model(input_ids=ids, labels=labels, use_cache=False).loss)


def vit_hf(s: Setup, how: How) -> Step:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=s.size(6, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), image_size=s.size(224, 64), attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, ViTModel(config), {"pixel_values": _images(s, how, 64)})


def whisper(s: Setup, how: How) -> Step:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=s.size(768, 32), encoder_layers=s.size(4, 1), encoder_attention_heads=s.size(12, 2), num_mel_bins=s.size(80, 8),
        encoder_ffn_dim=s.size(3072, 64), max_source_positions=s.size(1500, 16), attn_implementation=how.attention,
    )  # fmt: skip
    mel = torch.randn(s.size(8, 1), s.size(80, 8), 2 * s.size(1500, 16), device=s.device, dtype=how.dtype)
    return inference(s, how, WhisperEncoder(config), (mel,))


def wav2vec(s: Setup, how: How) -> Step:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        num_hidden_layers=s.size(3, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation="sdpa",
    )  # fmt: skip
    return inference(s, how, Wav2Vec2Model(config), (torch.randn(s.size(8, 1), s.size(80000, 4000), device=s.device),))


# torchvision and timm.


def _vision(name: str, **options: Any) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def classifier_training(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    images = _images(s, how, batch, side, tiny, how.dtype)
    labels = torch.randint(1000, (len(images),), device=s.device)
    return training(s, how, make(s), lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def classifier_inference(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    return inference(s, how, make(s), (_images(s, how, batch, side, tiny, how.dtype),))


def swin(s: Setup, how: How) -> Step:
    """torchvision writes its attention out; the fix calls the fused one with the bias and the mask as one mask."""
    model = _vision("swin_t")
    if how.attention == "sdpa":
        for module in model.modules():
            if type(module).__name__ == "ShiftedWindowAttention":
                module.forward = _fused_window_attention.__get__(module)
    return inference(s, how, model, (_images(s, how, 64, dtype=how.dtype),))


def _fused_window_attention(self: Any, x: Tensor) -> Tensor:
    batch, height, width, dim = x.shape
    side_h, side_w = self.window_size
    pad_right, pad_below = (-width) % side_w, (-height) % side_h
    x = F.pad(x, (0, 0, 0, pad_right, 0, pad_below))
    high, wide = x.shape[1:3]
    shift = [0 if side_h >= high else self.shift_size[0], 0 if side_w >= wide else self.shift_size[1]]
    if sum(shift):
        x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
    rows, columns = high // side_h, wide // side_w
    x = x.view(batch, rows, side_h, columns, side_w, dim).permute(0, 1, 3, 2, 4, 5).reshape(-1, side_h * side_w, dim)
    qkv = self.qkv(x).reshape(x.size(0), x.size(1), 3, self.num_heads, dim // self.num_heads).permute(2, 0, 3, 1, 4)
    bias = self.get_relative_position_bias().to(x.dtype)
    if sum(shift):
        mask = x.new_zeros((high, wide))
        for number, (row, column) in enumerate((r, c) for r in range(3) for c in range(3)):
            edges_h, edges_w = ((0, -side_h, -shift[0], high), (0, -side_w, -shift[1], wide))
            mask[edges_h[row] : edges_h[row + 1], edges_w[column] : edges_w[column + 1]] = number
        mask = mask.view(rows, side_h, columns, side_w).permute(0, 2, 1, 3).reshape(rows * columns, side_h * side_w)
        mask = (mask.unsqueeze(1) != mask.unsqueeze(2)).to(x.dtype) * -100.0
        bias = (bias + mask.unsqueeze(1)).repeat(batch, 1, 1, 1)
    x = F.scaled_dot_product_attention(*qkv, attn_mask=bias).transpose(1, 2).reshape(x.size(0), x.size(1), dim)
    x = self.proj(x).view(batch, rows, columns, side_h, side_w, dim).permute(0, 1, 3, 2, 4, 5).reshape(batch, high, wide, dim)
    if sum(shift):
        x = torch.roll(x, (shift[0], shift[1]), (1, 2))
    return x[:, :height, :width, :].contiguous()


def vit_timm(s: Setup, how: How) -> Step:
    model = _timm("vit_small_patch16_224", depth=s.size(6, 1), img_size=s.size(224, 64))
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = how.attention == "sdpa"
    return classifier_training(lambda _: model, 64, 224, 64, s, how)


def resnet_images(s: Setup, how: How) -> Step:
    """Batches of FP32 images come from host memory."""
    model = _placed(s, How(dtype=BF16, channels_last=True), _vision("resnet50")).eval()
    images = torch.rand(s.size(128, 2), 3, s.size(224, 64), s.size(224, 64))
    loader = Prefetcher([(s.pin(images),)], s) if how.pinned else None

    @torch.no_grad()
    def step() -> object:
        batch = loader.next()[0] if loader else images.to(s.device)
        return model(batch.to(BF16, memory_format=torch.channels_last))

    return step


class _Augmented(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Stored pictures, augmented by torchvision as they are read."""

    def __init__(self, count: int, side: int) -> None:
        from torchvision.transforms import v2

        self.pictures = [torch.randint(256, (3, side + side // 4, side + side // 2), dtype=torch.uint8) for _ in range(16)]
        self.count = count
        self.augment = v2.Compose(
            [
                v2.RandomResizedCrop(side, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.3, 0.3, 0.3),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.augment(self.pictures[at % len(self.pictures)]), at % 1000


def resnet_loader(s: Setup, how: How) -> Step:
    """`batch` is the number of workers."""
    data = _Augmented(1 << 14, s.size(128, 32))
    workers = how.batch if s.cuda else 0
    loader = torch.utils.data.DataLoader(data, s.size(16, 2), num_workers=workers, pin_memory=s.cuda, persistent_workers=workers > 0)
    model = _placed(s, How(channels_last=True), _vision("resnet18")).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(loader)

    def step() -> None:
        images, labels = (x.to(s.device, non_blocking=True) for x in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = F.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
        loss.backward()
        optimizer.step()

    return step


# torch_geometric.


def _graph(s: Setup, nodes: int, edges: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    count = s.size(nodes, 50)
    x = torch.randn(count, s.size(features, 16), device=s.device)
    edge = torch.randint(count, (2, s.size(edges, 200)), device=s.device)
    return x, edge, torch.randint(7, (count,), device=s.device)


def graph_training(kind: str, nodes: int, edges: int, features: int, hidden: int, s: Setup, how: How) -> Step:
    from torch_geometric.nn.models import GAT, GCN, GraphSAGE

    x, edge, labels = _graph(s, nodes, edges, features)
    model = {"gcn": GCN, "gat": GAT, "sage": GraphSAGE}[kind](x.shape[1], s.size(hidden, 16), 3, 7, dropout=0.5)
    return training(s, how, model, lambda model: F.cross_entropy(model(x, edge), labels), torch.optim.Adam)


def _workload(name: str, what: str, program: Program, how: How, **fixes: How) -> Workload:
    """`rule=How(...)`, and `rule__variant=How(...)` where a rule's fix comes in two sizes."""
    named = {rule.replace("__", "/").replace("_", "-"): fixed for rule, fixed in fixes.items()}
    return Workload(
        name=name, rule=None, folder="public", what=what, fix="each alone", make_slow=partial(program, how=how),
        alone={rule: partial(program, how=fixed) for rule, fixed in named.items()},
        shared={rule: float(fixed.batch) for rule, fixed in named.items() if rule == "low-arithmetic-intensity"},
    )  # fmt: skip


RESNET50, RESNET18, MOBILENET = (
    lambda s: _vision("resnet18" if s.tiny else "resnet50"),
    lambda _: _vision("resnet18"),
    lambda _: _vision("mobilenet_v3_small"),
)
CONVNEXT, DEEPLAB, EFFICIENTNET, MIXER = (
    lambda _: _vision("convnext_tiny"),
    lambda s: _Output(_vision("deeplabv3_mobilenet_v3_large" if s.tiny else "deeplabv3_resnet50", weights_backbone=None)),
    lambda _: _timm("efficientnet_b0"),
    lambda s: _timm("mixer_s16_224" if s.tiny else "mixer_b16_224", img_size=s.size(224, 64)),
)


class _Output(nn.Module):
    """A segmentation model's own output, without the others in its dictionary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)["out"]


COMPILED, GRAPHS = "default", "reduce-overhead"

WORKLOADS = (
    _workload(
        "gpt2_fp32", "GPT-2 of transformers, training, FP32 products, attention written out, 50257 words.", gpt2, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_attention=How(attention="sdpa"),
        unfused_elementwise=How(compiled=COMPILED), optimizer_foreach=How(optimizer="fused"),
        gemm_alignment=How(vocabulary=50304),
    ),
    _workload(
        "gpt2_bf16", "GPT-2 of transformers, training in bf16, attention written out, 50257 words.", gpt2, How(dtype=BF16),
        unfused_attention=How(dtype=BF16, attention="sdpa"), unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
        gemm_alignment=How(dtype=BF16, vocabulary=50304), optimizer_foreach=How(dtype=BF16, optimizer="fused"),
    ),
    _workload(
        "bert_single", "BERT base of transformers, FP32, one sentence of 64 words: launches are the bound.", bert_single,
        How(attention="sdpa"),
        launch_gap=How(attention="sdpa", compiled=GRAPHS), graph_candidate=How(attention="sdpa", graph=True),
        precision=How(attention="sdpa", autocast=BF16),
    ),
    _workload(
        "bert_scaler", "BERT's masked language model, training in fp16 with a GradScaler.", bert_masked,
        How(attention="sdpa", autocast=torch.float16, scaler=True),
        amp_scaler_sync=How(attention="sdpa", autocast=torch.float16, scaler=True, optimizer="fused"),
        launch_gap=How(attention="sdpa", autocast=torch.float16, scaler=True, compiled=COMPILED),
    ),
    _workload(
        "bert_adam_loop", "A BERT classifier in bf16, AdamW parameter by parameter, the loss read in each step.", bert_classifier,
        How(attention="sdpa", dtype=BF16, optimizer="loop", read_loss=True),
        optimizer_foreach=How(attention="sdpa", dtype=BF16, optimizer="fused", read_loss=True),
        launch_gap=How(attention="sdpa", dtype=BF16, optimizer="fused", compiled=COMPILED, read_loss=True),
        sync_stall=How(attention="sdpa", dtype=BF16, optimizer="loop"),
    ),
    _workload(
        "bert_tokens", "BERT in bf16 on 64 sentences; token ids of 128 kB come from pageable memory.", bert_tokens,
        How(attention="sdpa", dtype=BF16), memcpy=How(attention="sdpa", dtype=BF16, pinned=True),
    ),
    _workload(
        "llama_bf16", "Llama of transformers, training in bf16 on 2048 tokens, attention and norms written out.", llama, How(dtype=BF16),
        unfused_attention=How(dtype=BF16, attention="sdpa"), unfused_norm=How(dtype=BF16, fused_norms=True),
        unfused_elementwise=How(dtype=BF16, compiled=COMPILED), optimizer_foreach=How(dtype=BF16, optimizer="fused"),
    ),
    _workload(
        "llama_token", "Llama of transformers, one token through four layers of 4096, bf16.", llama_token,
        How(attention="sdpa", dtype=BF16),
        launch_gap=How(attention="sdpa", dtype=BF16, compiled=GRAPHS), low_arithmetic_intensity=How(attention="sdpa", dtype=BF16, batch=16),
    ),
    _workload(
        "t5_bf16", "T5 of transformers, training in bf16, 512 words in and 128 out.", t5, How(dtype=BF16),
        unfused_norm=How(dtype=BF16, fused_norms=True), unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
        optimizer_foreach=How(dtype=BF16, optimizer="fused"),
    ),
    _workload(
        "vit_fp32", "ViT base of transformers, FP32, 64 images, attention written out.", vit_hf, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_attention=How(attention="sdpa"),
        unfused_elementwise=How(compiled=COMPILED),
    ),
    _workload(
        "whisper_fp16", "Whisper's encoder in fp16 on 30 s of sound, attention written out.", whisper, How(dtype=torch.float16),
        unfused_attention=How(dtype=torch.float16, attention="sdpa"), unfused_elementwise=How(dtype=torch.float16, compiled=COMPILED),
    ),
    _workload(
        "wav2vec_fp32", "wav2vec 2.0 of transformers, FP32, on 5 s of sound.", wav2vec, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True),
    ),
    _workload(
        "resnet50_amp", "ResNet-50 of torchvision, training in bf16 autocast, NCHW.", partial(classifier_training, RESNET50, 64, 224, 64),
        How(autocast=BF16),
        memory_layout=How(autocast=BF16, channels_last=True), optimizer_foreach=How(autocast=BF16, optimizer="fused"),
        unfused_elementwise=How(autocast=BF16, compiled=COMPILED),
    ),
    _workload(
        "resnet50_tf32", "ResNet-50 of torchvision, training in FP32, whose convolutions take TF32.",
        partial(classifier_training, RESNET50, 64, 224, 64), How(),
        precision=How(autocast=BF16), memory_layout=How(channels_last=True),
    ),
    _workload(
        "resnet18_single", "ResNet-18 of torchvision on one image: launches are the bound.",
        partial(classifier_inference, RESNET18, 1, 224, 64), How(),
        launch_gap=How(compiled=GRAPHS), graph_candidate=How(graph=True), precision=How(autocast=BF16), memory_layout=How(channels_last=True),
    ),
    _workload(
        "mobilenet_small_batch", "MobileNetV3 of torchvision, training on 4 images, gradients filled with zeros.",
        partial(classifier_training, MOBILENET, 4, 224, 64), How(zero=True),
        launch_gap=How(zero=True, compiled=COMPILED, optimizer="fused"), optimizer_foreach=How(zero=True, optimizer="fused"),
        precision=How(zero=True, autocast=BF16), grad_zeroing=How(), memory_layout=How(zero=True, channels_last=True),
    ),
    _workload(
        "convnext_amp", "ConvNeXt of torchvision, training in bf16 autocast, NCHW.", partial(classifier_training, CONVNEXT, 32, 224, 64),
        How(autocast=BF16),
        memory_layout=How(autocast=BF16, channels_last=True), unfused_elementwise=How(autocast=BF16, compiled=COMPILED),
        optimizer_foreach=How(autocast=BF16, optimizer="fused"),
    ),
    _workload(
        "efficientnet_bf16", "EfficientNet-B0 of timm, inference in bf16, NCHW.", partial(classifier_inference, EFFICIENTNET, 128, 224, 64),
        How(dtype=BF16),
        memory_layout=How(dtype=BF16, channels_last=True), unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
    ),
    _workload(
        "deeplab_fp16", "DeepLabV3 of torchvision, inference in fp16, NCHW.", partial(classifier_inference, DEEPLAB, 8, 512, 64),
        How(dtype=torch.float16),
        memory_layout=How(dtype=torch.float16, channels_last=True), unfused_elementwise=How(dtype=torch.float16, compiled=COMPILED),
    ),
    _workload(
        "deeplab_fp32", "DeepLabV3 of torchvision, inference in FP32.", partial(classifier_inference, DEEPLAB, 4, 512, 64), How(),
        precision=How(autocast=BF16), memory_layout=How(channels_last=True),
    ),
    _workload(
        "swin_bf16", "Swin of torchvision, inference in bf16: attention written out in windows.", swin, How(dtype=BF16),
        unfused_attention=How(dtype=BF16, attention="sdpa"), unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
    ),
    _workload(
        "mixer_amp", "MLP-Mixer of timm, training in bf16 autocast.", partial(classifier_training, MIXER, 64, 224, 64), How(autocast=BF16),
        unfused_elementwise=How(autocast=BF16, compiled=COMPILED), optimizer_foreach=How(autocast=BF16, optimizer="fused"),
        dtype_casts=How(dtype=BF16),
    ),
    _workload(
        "vit_timm_amp", "ViT small of timm, training in bf16 autocast, attention written out.", vit_timm, How(autocast=BF16),
        unfused_attention=How(autocast=BF16, attention="sdpa"), unfused_elementwise=How(autocast=BF16, compiled=COMPILED),
        optimizer_foreach=How(autocast=BF16, optimizer="fused"),
    ),
    _workload(
        "vit_serving", "ViT small of timm: FP32 weights under autocast, 8 images.",
        partial(classifier_inference, lambda s: _timm("vit_small_patch16_224", img_size=s.size(224, 64), depth=s.size(12, 1)), 8, 224, 64),
        How(autocast=BF16),
        dtype_casts=How(dtype=BF16), launch_gap=How(autocast=BF16, compiled=GRAPHS), graph_candidate=How(autocast=BF16, graph=True),
    ),
    _workload(
        "resnet_images", "ResNet-50 in bf16 on batches of 128 images from pageable memory.", resnet_images, How(), memcpy=How(pinned=True),
    ),
    _workload(
        "resnet_augmented", "ResNet-18 training; torchvision augments each picture in the training process.", resnet_loader, How(),
        data_loading=How(batch=8),
    ),
    _workload(
        "gcn_cora", "GCN of torch_geometric on a graph of Cora's size: launches are the bound.",
        partial(graph_training, "gcn", 2708, 10556, 1433, 16), How(),
        launch_gap=How(compiled=COMPILED, optimizer="fused"), precision=How(autocast=BF16), optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "gat_large", "GAT of torch_geometric on a graph of a million edges.", partial(graph_training, "gat", 60_000, 1_000_000, 128, 128), How(),
        unfused_elementwise=How(compiled=COMPILED), precision=How(autocast=BF16), optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "sage_large", "GraphSAGE of torch_geometric on a graph of two million edges.",
        partial(graph_training, "sage", 200_000, 2_000_000, 128, 256), How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
    ),
)  # fmt: skip
