"""Public models as they are, with random weights, as programs whose steps `record_ways.py` records in several ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step

Make = Callable[[Setup], Step]


@dataclass(frozen=True)
class Program:
    """bound: what holds the unprofiled step up, `gpu`, `host` or `data`. also: further ways it is recorded, `whole` or `once`."""

    name: str
    bound: str
    what: str
    make: Make
    also: tuple[str, ...] = ()


def _optimizer(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


def _images(s: Setup, batch: int, side: int = 224) -> tuple[Tensor, Tensor]:
    shape = (s.size(batch, 2), 3, s.size(side, 64), s.size(side, 64))
    images = torch.rand(shape, device=s.device).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(1000, (shape[0],), device=s.device)


def _tokens(s: Setup, vocabulary: int, batch: int, length: int) -> Tensor:
    return torch.randint(vocabulary, (s.size(batch, 1), s.size(length, 16)), device=s.device)


def _train(s: Setup, loss_of: Callable[..., Tensor], optimizer: torch.optim.Optimizer, *batch: Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.bfloat16):
            loss = loss_of(*batch)
        loss.backward()
        optimizer.step()

    return step


def _vision_training(load: Callable[[], nn.Module], batch: int, side: int = 224, compiled: bool = False, **options: Any) -> Make:
    def make(s: Setup) -> Step:
        model = load().to(s.device, memory_format=torch.channels_last).train()

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model(images), labels)

        optimizer = _optimizer(model, **options)
        return _train(s, s.compile(loss_of) if compiled else loss_of, optimizer, *_images(s, batch, side))

    return make


def _vision_inference(load: Callable[[], nn.Module], batch: int, side: int = 224, **compile_options: Any) -> Make:
    def make(s: Setup) -> Step:
        model = load().to(s.device, memory_format=torch.channels_last).eval()
        images, _ = _images(s, batch, side)
        run: Callable[..., Any] = s.compile(model, **compile_options) if compile_options else model

        def step() -> None:
            with torch.inference_mode(), torch.autocast(s.device.type, torch.bfloat16):
                run(images)

        return step

    return make


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def load() -> nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None, **options)

    return load


def _timm(name: str) -> Callable[[], nn.Module]:
    def load() -> nn.Module:
        import timm

        return timm.create_model(name)

    return load


def _gpt2_training(batch: int, length: int) -> Make:
    def make(s: Setup) -> Step:
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(n_layer=s.size(12, 2), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).to(s.device)
        tokens = _tokens(s, 50257, batch, length)
        compiled = s.compile(model)
        return _train(s, lambda t: compiled(input_ids=t, labels=t, use_cache=False).loss, _optimizer(model, fused=True), tokens)

    return make


def _gpt2_generate(s: Setup) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=s.size(12, 2))).to(s.device, torch.bfloat16).eval()
    tokens = _tokens(s, 50257, 1, 64)
    mask = torch.ones_like(tokens)

    def step() -> None:
        with torch.inference_mode():
            model.generate(tokens, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)

    return step


def _bert_inference(batch: int, length: int, compiled: bool) -> Make:
    def make(s: Setup) -> Step:
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(num_hidden_layers=s.size(12, 2))).to(s.device, torch.bfloat16).eval()
        tokens = _tokens(s, 30522, batch, length)
        run = s.compile(model) if compiled else model

        def step() -> None:
            with torch.inference_mode():
                run(input_ids=tokens)

        return step

    return make


def _bert_training(s: Setup) -> Step:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=s.size(12, 2))).to(s.device).train()
    tokens = _tokens(s, 30522, 8, 128)
    return _train(s, lambda t: model(input_ids=t, labels=t).loss, _optimizer(model), tokens)


def _t5_training(s: Setup) -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    layers = s.size(6, 1)
    config = T5Config(num_layers=layers, num_decoder_layers=layers, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).to(s.device).train()
    tokens = _tokens(s, 32128, 4, 64)
    return _train(s, lambda t: model(input_ids=t, labels=t).loss, _optimizer(model, foreach=False), tokens)


def _llama_prefill(s: Setup) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4} if s.tiny else {}
    torch.set_default_dtype(torch.bfloat16)
    with s.device:
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=s.size(16, 2), **small)).eval()
    torch.set_default_dtype(torch.float32)
    tokens = _tokens(s, 32000, 4, 512)

    def step() -> None:
        with torch.inference_mode():
            model(input_ids=tokens, use_cache=False)

    return step


def _fasterrcnn(s: Setup) -> Step:
    model = _torchvision("fasterrcnn_resnet50_fpn", weights_backbone=None)().to(s.device).eval()
    images = [torch.rand(3, s.size(480, 64), s.size(640, 64), device=s.device)]

    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


class _Photos(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images that the host crops, resizes and normalises."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.rand(3, 256, 256, generator=torch.Generator().manual_seed(index))
        image = F.interpolate(image[None, :, 8:248, 8:248], size=(224, 224), mode="bilinear", antialias=True)[0]
        return (image - image.mean((1, 2), keepdim=True)) / image.std((1, 2), keepdim=True), index % 1000


def _loader_training(s: Setup) -> Step:
    model = _torchvision("resnet18")().to(s.device, memory_format=torch.channels_last).train()
    optimizer = _optimizer(model, fused=True)
    loader = torch.utils.data.DataLoader(_Photos(), batch_size=s.size(64, 2), num_workers=s.size(3, 1), pin_memory=s.cuda)
    batches = iter(loader)

    def step() -> None:
        images, labels = next(batches)
        images, labels = images.to(s.device, non_blocking=True), labels.to(s.device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


class _Decoded(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Small images kept in memory, cropped, flipped and normalised by the process that trains."""

    def __init__(self) -> None:
        self.images = torch.randint(256, (64, 3, 232, 232), dtype=torch.uint8).numpy()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = index % 8, index // 8 % 8
        image = self.images[index % len(self.images), :, top : top + 224, left : left + 224]
        image = image[:, :, ::-1] if index % 2 else image
        return torch.from_numpy((image.astype("float32") - 127.5) / 64), index % 1000


def _training_that_loads(model: str, batch: int, photos: type[torch.utils.data.Dataset[tuple[Tensor, int]]]) -> Make:
    """A training whose own process makes the batches, as DataLoader does by default."""

    def make(s: Setup) -> Step:
        network = _torchvision(model)().to(s.device, memory_format=torch.channels_last).train()
        optimizer = _optimizer(network, fused=True)
        batches = iter(torch.utils.data.DataLoader(photos(), batch_size=s.size(batch, 2), pin_memory=s.cuda))

        def step() -> None:
            images, labels = next(batches)
            images, labels = images.to(s.device, non_blocking=True), labels.to(s.device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(s.device.type, torch.bfloat16):
                loss = F.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()

        return step

    return make


PROGRAMS = [
    Program("gpt2_train_compiled", "gpu", "GPT-2 training, compiled, batch 8 x 1024", _gpt2_training(8, 1024)),
    Program("bert_train", "host", "BERT-base training, eager, batch 8 x 128", _bert_training, ("whole",)),
    Program(
        "resnet50_train_compiled",
        "gpu",
        "ResNet-50 training, compiled, channels-last, batch 128",
        _vision_training(_torchvision("resnet50"), 128, compiled=True, fused=True),
    ),
    Program("resnet18_infer", "host", "ResNet-18 inference, eager, batch 1", _vision_inference(_torchvision("resnet18"), 1), ("once",)),
    Program("gpt2_train_small_compiled", "host", "GPT-2 training, compiled, batch 1 x 64", _gpt2_training(1, 64)),
    Program(
        "vit_small_train_compiled",
        "gpu",
        "ViT-S/16 training (timm), compiled, batch 128",
        _vision_training(_timm("vit_small_patch16_224"), 128, compiled=True, fused=True),
    ),
    Program("t5_train", "host", "T5-small training, eager, for-loop AdamW, batch 4 x 64", _t5_training),
    Program("swin_train", "gpu", "Swin-T training, eager, batch 128", _vision_training(_torchvision("swin_t"), 128, fused=True), ("whole",)),
    Program("bert_infer_compiled", "gpu", "BERT-base inference, compiled, bf16, batch 64 x 256", _bert_inference(64, 256, True)),
    Program(
        "efficientnet_train_compiled",
        "host",
        "EfficientNet-B0 training, compiled, batch 4",
        _vision_training(_torchvision("efficientnet_b0"), 4, compiled=True, fused=True),
    ),
    Program("mobilenet_train", "host", "MobileNet-V3-L training, eager, batch 16", _vision_training(_torchvision("mobilenet_v3_large"), 16), ("whole",)),
    Program("gpt2_generate", "host", "GPT-2 generating two tokens with its cache", _gpt2_generate, ("once",)),
    Program("llama_prefill", "gpu", "Llama (16 layers of the 7B size) prefill, eager, batch 4 x 512", _llama_prefill),
    Program("fasterrcnn_infer", "host", "Faster R-CNN inference, eager, one image", _fasterrcnn),
    Program(
        "convnext_train_compiled",
        "gpu",
        "ConvNeXt-T training (timm), compiled, batch 64",
        _vision_training(_timm("convnext_tiny"), 64, compiled=True, fused=True),
    ),
    Program(
        "vit_infer_graphs",
        "gpu",
        "ViT-S/16 inference, compiled into CUDA graphs, batch 32",
        _vision_inference(_timm("vit_small_patch16_224"), 32, mode="reduce-overhead"),
    ),
    Program(
        "fcn_infer",
        "gpu",
        "FCN-ResNet-50 inference, eager, batch 16",
        _vision_inference(_torchvision("fcn_resnet50", weights_backbone=None), 16, 512),
        ("once",),
    ),
    Program(
        "resnet152_loads",
        "gpu",
        "ResNet-152 training, whose own process makes the batches, batch 64",
        _training_that_loads("resnet152", 64, _Decoded),
        ("whole",),
    ),
    Program(
        "resnet18_loads", "data", "ResNet-18 training, whose own process makes the batches, batch 32", _training_that_loads("resnet18", 32, _Photos), ("whole",)
    ),
    Program("loader_train", "data", "ResNet-18 training whose three DataLoader workers are too slow", _loader_training),
]
REGISTRY = {program.name: program for program in PROGRAMS}
