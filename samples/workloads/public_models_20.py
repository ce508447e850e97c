"""Public models as tutorials and reference scripts run them: answers, flowers, bodies, speech, opinions, proteins and handwriting.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import random
from itertools import count as counter
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _timm, _vision, training
from .public_models import _with_fused_norms as _fuse_norms
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever

# Training.


def convnext_flowers(s: Setup, *, read: bool = True, averaged_at_once: bool = False, **how: Any) -> Step:
    """timm's train.py on 102 flowers: mixup and cutmix, a running mean of the weights; the loss is read before the backward."""
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import AverageMeter, ModelEmaV2, ModelEmaV3

    way, many, side, kinds = How(**how), s.size(64, 2), s.size(224, 64), 102
    small: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)} if s.tiny else {}
    model = _placed(s, way, _timm("convnext_tiny", num_classes=kinds, drop_path_rate=0.1, **small)).train()
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.05)
    mean_model: Any = (ModelEmaV3 if averaged_at_once else ModelEmaV2)(model, decay=0.9998)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=kinds)
    loss_of, losses = SoftTargetCrossEntropy(), AverageMeter()
    mean, std = (torch.tensor(of, device=s.device).view(1, 3, 1, 1) * 255 for of in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    photos = [
        (s.pin(torch.randint(256, (many, 3, side, side), dtype=torch.uint8)), s.pin(torch.randint(kinds, (many,)))) for _ in range(4)
    ]  # fmt: skip
    loader, total = Prefetcher(photos, s), torch.zeros((), device=s.device)
    np.random.seed(0)  # noqa: NPY002 timm's Mixup draws from it

    def step() -> None:
        _precision(way)
        pictures, labels = loader.next()
        x, target = mixup(pictures.float().sub_(mean).div_(std), labels)
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            loss = loss_of(model(x), target)
        if read:
            losses.update(loss.item(), many)
        else:
            total.add_(loss.detach(), alpha=many)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read:
            s.synchronize()
        mean_model.update(model)

    return step


class _Talks(torch.utils.data.Dataset[dict[str, Any]]):
    """What `datasets` gives after `map`: waves as lists of floats, or as arrays after `with_format("numpy")`."""

    def __init__(self, count: int, length: int, letters: int, said: int, arrays: bool) -> None:
        drawn = np.random.default_rng(0)
        waves = [drawn.standard_normal(int(length * share), dtype=np.float32) for share in np.linspace(0.8, 1.0, count)]
        self.waves: list[Any] = waves if arrays else [wave.tolist() for wave in waves]
        self.labels = [drawn.integers(5, letters, said).tolist() for _ in range(count)]

    def __len__(self) -> int:
        return 64 * len(self.waves)

    def __getitem__(self, at: int) -> dict[str, Any]:
        at %= len(self.waves)
        return {"input_values": self.waves[at], "labels": self.labels[at]}


def wav2vec_letters(s: Setup, *, arrays: bool = False, workers: bool = False, **how: Any) -> Step:
    """wav2vec 2.0 base learns to write talks down by CTC, as in the well-known notebook; 8 talks of up to ten seconds a step."""
    from torch.utils.data import DataLoader
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    way, talks, length, letters = How(**how), s.size(8, 2), s.size(160_000, 8000), 32
    small: dict[str, Any] = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2} if s.tiny else {}
    config = Wav2Vec2Config(
        vocab_size=letters, hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), ctc_loss_reduction="mean", pad_token_id=0, layerdrop=0.0, mask_time_length=s.size(10, 2),
        attn_implementation=way.attention, **small,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    extractor = Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=16_000, padding_value=0.0, do_normalize=True)

    def collate(features: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        batch = extractor.pad([{"input_values": one["input_values"]} for one in features], padding=True, return_tensors="pt")
        labels = nn.utils.rnn.pad_sequence([torch.tensor(one["labels"]) for one in features], batch_first=True, padding_value=-100)
        return batch["input_values"], labels

    options, batches = _forever(s, workers and s.cuda)
    options |= {"num_workers": 4} if options else {}
    data = _Talks(s.size(24, 4), length, letters, s.size(150, 4), arrays)
    stream = batches(DataLoader(data, batch_size=talks, shuffle=True, drop_last=True, collate_fn=collate, **options))

    def loss(model: Any) -> Tensor:
        waves, labels = (tensor.to(s.device, non_blocking=workers) for tensor in next(stream))
        return model(input_values=waves, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


def _tissues(count: int, proteins: int, bonds: int, parts: int, roles: int, loops: bool) -> list[Any]:
    """Graphs of about PPI's sizes."""
    from torch_geometric.data import Data
    from torch_geometric.utils import add_remaining_self_loops, remove_self_loops, to_undirected

    some = []
    for at in range(count):
        nodes = int(proteins * (0.7 + 0.6 * at / count))
        edges = to_undirected(torch.randint(nodes, (2, int(bonds * nodes / proteins / 2))), num_nodes=nodes)
        if loops:
            edges = add_remaining_self_loops(remove_self_loops(edges)[0], num_nodes=nodes)[0]
        some.append(Data(x=torch.rand(nodes, parts), edge_index=edges, y=(torch.rand(nodes, roles) < 0.3).float()))
    return some


def gat_tissues(s: Setup, *, loops_once: bool = False, read: bool = True, resident: bool = False, **how: Any) -> Step:
    """torch_geometric's example ppi.py: three GAT layers with linear ones beside them, one tissue's graph a step."""
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GATConv

    way, parts, roles, heads, width = How(**how), s.size(50, 8), s.size(121, 5), 4, s.size(256, 8)
    own = {"add_self_loops": not loops_once}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.lin1 = GATConv(parts, width, heads=heads, **own), nn.Linear(parts, heads * width)
            self.conv2, self.lin2 = GATConv(heads * width, width, heads=heads, **own), nn.Linear(heads * width, heads * width)
            self.conv3, self.lin3 = GATConv(heads * width, roles, heads=6, concat=False, **own), nn.Linear(heads * width, roles)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = F.elu(self.conv1(x, edges) + self.lin1(x))
            x = F.elu(self.conv2(x, edges) + self.lin2(x))
            return self.conv3(x, edges) + self.lin3(x)  # type: ignore[no-any-return]

    model = _placed(s, way, Net()).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam)
    graphs = _tissues(s.size(20, 3), s.size(2245, 20), s.size(61_000, 80), parts, roles, loops_once)
    if resident:
        graphs = [graph.to(s.device) for graph in graphs]
    _, batches = _forever(s, False)
    stream = batches(GraphLoader(graphs, batch_size=1, shuffle=True))
    total, seen = torch.zeros((), device=s.device), 0.0

    def step() -> None:
        nonlocal seen
        _precision(way)
        data = next(stream).to(s.device)
        optimizer.zero_grad()
        with _casting(s, way):
            loss = F.binary_cross_entropy_with_logits(model(data.x, data.edge_index), data.y)
        if read:
            seen += loss.item() * data.num_graphs
        else:
            total.add_(loss.detach(), alpha=data.num_graphs)
        loss.backward()
        optimizer.step()

    return step


def trocr_lines(s: Setup, *, read: bool = True, pinned: bool = False, **how: Any) -> Step:
    """TrOCR, a ViT of 384 x 384 and a decoder of 50,265 words, is tuned on eight lines, as in the well-known notebook."""
    from transformers import TrOCRConfig, TrOCRForCausalLM, VisionEncoderDecoderModel, ViTConfig, ViTModel

    way, lines, side, length = How(**how), s.size(8, 2), s.size(384, 32), s.size(64, 8)
    words = s.size(50_265, 101)
    vision = ViTConfig(
        hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), image_size=side, attn_implementation="eager",
    )  # fmt: skip
    text = TrOCRConfig(
        vocab_size=s.size(way.vocabulary or words, 104 if way.vocabulary else words), d_model=s.size(1024, 32),
        decoder_layers=s.size(4, 1), decoder_attention_heads=s.size(16, 2), decoder_ffn_dim=s.size(4096, 64),
        cross_attention_hidden_size=s.size(768, 32), max_position_embeddings=512, use_cache=False, is_decoder=True,
        add_cross_attention=True, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model: Any = VisionEncoderDecoderModel(encoder=ViTModel(vision, add_pooling_layer=False), decoder=TrOCRForCausalLM(text))
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 1
    model = _placed(s, way, model).train()
    optimizer = _optimizer(way, model.parameters())
    batches = []
    for _ in range(4):
        labels = torch.randint(3, words, (lines, length))
        for row in labels:
            row[int(torch.randint(length // 4, length, ())) :] = -100
        batches.append((torch.rand(lines, 3, side, side) * 2 - 1, labels))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in batch) for batch in batches], s) if pinned else None
    turn, total, seen = counter(), torch.zeros((), device=s.device), 0.0

    def step() -> None:
        nonlocal seen
        _precision(way)
        pixels, labels = loader.next() if loader else (tensor.to(s.device) for tensor in batches[next(turn) % 4])
        with _casting(s, way):
            loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if read:
            seen += loss.item()
        else:
            total.add_(loss.detach())

    return step


# Serving.

Answers = dict[str, list[dict[str, Any]]]


def _best_answers(starts: Any, ends: Any, offsets: list[list[Any]], contexts: list[str], most: int, longest: int) -> Answers:
    """postprocess_qa_predictions of transformers' utils_qa.py: all pairs of the likeliest beginnings and ends, the best with their odds."""
    said = {}
    for number, (start_logits, end_logits, offset, context) in enumerate(zip(starts, ends, offsets, contexts, strict=True)):
        prelim = []
        start_indexes = np.argsort(start_logits)[-1 : -most - 1 : -1].tolist()
        end_indexes = np.argsort(end_logits)[-1 : -most - 1 : -1].tolist()
        for start_index in start_indexes:
            for end_index in end_indexes:
                if offset[start_index] is None or offset[end_index] is None:
                    continue
                if end_index < start_index or end_index - start_index + 1 > longest:
                    continue
                prelim.append(
                    {
                        "offsets": (offset[start_index][0], offset[end_index][1]),
                        "score": start_logits[start_index] + end_logits[end_index],
                        "start_logit": start_logits[start_index],
                        "end_logit": end_logits[end_index],
                    }
                )
        predictions = sorted(prelim, key=lambda one: one["score"], reverse=True)[:most]
        for one in predictions:
            begin, end = one.pop("offsets")
            one["text"] = context[begin:end]
        if not predictions:
            predictions = [{"text": "", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0}]
        scores = np.array([one["score"] for one in predictions])
        odds = np.exp(scores - np.max(scores))
        for probability, one in zip(odds / odds.sum(), predictions, strict=True):
            one["probability"] = probability
        said[f"question {number}"] = [
            {key: float(value) if isinstance(value, (np.float16, np.float32, np.float64)) else value for key, value in one.items()}
            for one in predictions
        ]
    return said


def _best_there(starts: Tensor, ends: Tensor, known: Tensor, most: int, longest: int) -> Tensor:
    """The same on the GPU: begin, end, both logits, score and odds of each passage's best pairs."""
    (first, begin), (last, end) = starts.topk(most), ends.topk(most)
    fits = (end[:, None] >= begin[:, :, None]) & (end[:, None] - begin[:, :, None] < longest)
    fits &= known.gather(1, begin)[:, :, None] & known.gather(1, end)[:, None]
    scores, at = torch.where(fits, first[:, :, None] + last[:, None], -torch.inf).flatten(1).topk(most)
    one, other = at // most, at % most
    parts = [begin.gather(1, one), end.gather(1, other), first.gather(1, one), last.gather(1, other), scores, scores.softmax(1)]
    return torch.stack([part.float() for part in parts], -1)


def _told(found: list[list[list[float]]], offsets: list[list[Any]], contexts: list[str]) -> Answers:
    said = {}
    for number, (pairs, offset, context) in enumerate(zip(found, offsets, contexts, strict=True)):
        said[f"question {number}"] = [
            {
                "score": score, "start_logit": first, "end_logit": last,
                "text": context[offset[int(begin)][0] : offset[int(end)][1]], "probability": odds,
            }
            for begin, end, first, last, score, odds in pairs if score > -float("inf")
        ] or [{"text": "", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0, "probability": 1.0}]  # fmt: skip
    return said


def squad_answers(s: Setup, *, there: bool = False, pinned: bool = False, together: bool = False, **how: Any) -> Step:
    """A small RoBERTa finds answers in 32 passages of 384 words, which utils_qa.py takes from the logits by loops."""
    from transformers import RobertaConfig, RobertaForQuestionAnswering

    way, passages, length, words = How(**how), s.size(32, 2), s.size(384, 24), s.size(50_265, 101)
    most, longest = s.size(20, 5), 30
    config = RobertaConfig(
        vocab_size=words, hidden_size=s.size(384, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(1536, 64), max_position_embeddings=514, type_vocab_size=1, attn_implementation=way.attention,
    )  # fmt: skip
    model: Any = RobertaForQuestionAnswering(config)
    nn.init.normal_(model.qa_outputs.weight)
    model = _placed(s, way, model).eval()
    ids, mask = torch.randint(3, words, (passages, length)), torch.ones(passages, length, dtype=torch.long)
    offsets: list[list[Any]] = []
    for row, long in enumerate(torch.linspace(length // 2, length, passages).long().tolist()):
        ids[row, long:], mask[row, long:] = 1, 0
        asked = length // 24
        offsets.append([(6 * at, 6 * at + 5) if asked <= at < long - 1 else None for at in range(length)])
    drawn = random.Random(0)
    contexts = [" ".join("".join(drawn.choices("etaoinshrdlu", k=5)) for _ in range(length)) for _ in range(passages)]
    known = torch.tensor([[place is not None for place in offset] for offset in offsets], device=s.device)
    loader = Prefetcher([(s.pin(ids), s.pin(mask))], s) if pinned else None

    @torch.no_grad()
    def step() -> Answers:
        _precision(way)
        batch = loader.next() if loader else (ids.to(s.device), mask.to(s.device))
        with _casting(s, way):
            out = model(input_ids=batch[0], attention_mask=batch[1])
        starts, ends = out.start_logits.float(), out.end_logits.float()
        if there:
            return _told(_best_there(starts, ends, known, most, longest).cpu().tolist(), offsets, contexts)
        if together:
            both = torch.stack([starts, ends]).cpu().numpy()
            return _best_answers(both[0], both[1], offsets, contexts, most, longest)
        return _best_answers(starts.cpu().numpy(), ends.cpu().numpy(), offsets, contexts, most, longest)

    return step


def _said_once(maps: Tensor, rois: Tensor, at_once: bool, few: bool) -> tuple[Tensor, Tensor]:
    """torchvision's heatmaps_to_keypoints; `at_once` reads all boxes' sizes in one go, `few` computes only what has to be box by box."""
    widths, heights = (rois[:, 2] - rois[:, 0]).clamp(min=1), (rois[:, 3] - rois[:, 1]).clamp(min=1)
    wide, high = widths.ceil(), heights.ceil()
    many, points = len(rois), maps.shape[1]
    sizes = torch.stack([high, wide], 1).int().tolist() if at_once else None
    places = torch.zeros(many, 3, points, device=maps.device)
    scores = torch.zeros(many, points, device=maps.device)
    best = []
    for i in range(many):
        width, height = (sizes[i][1], sizes[i][0]) if sizes else (int(wide[i].item()), int(high[i].item()))
        grown = F.interpolate(maps[i][:, None], size=(height, width), mode="bicubic", align_corners=False)[:, 0]
        if few:
            best.append(grown.flatten(1).max(1))
            continue
        across, down = widths[i] / width, heights[i] / height
        at = grown.reshape(points, -1).argmax(dim=1)
        x_int = at % width
        y_int = torch.div(at - x_int, width, rounding_mode="floor")
        places[i, 0, :] = (x_int.float() + 0.5) * across + rois[i, 0]
        places[i, 1, :] = (y_int.float() + 0.5) * down + rois[i, 1]
        places[i, 2, :] = 1
        scores[i, :] = grown[torch.arange(points, device=maps.device), y_int, x_int]
    if few and best:
        scores, at = torch.stack([value for value, _ in best]).float(), torch.stack([where for _, where in best])
        whole = wide.long()[:, None]
        x = ((at % whole).float() + 0.5) * (widths / wide)[:, None] + rois[:, :1]
        y = (torch.div(at, whole, rounding_mode="floor").float() + 0.5) * (heights / high)[:, None] + rois[:, 1:2]
        places = torch.stack([x, y, torch.ones_like(x)], 1)
    return places.permute(0, 2, 1), scores


@torch.no_grad()
def _settle(backbone: nn.Module, pictures: Tensor) -> None:
    """Batch norms that know their inputs' sizes, as after training: else random weights find next to nobody."""
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    backbone.train()((pictures - 0.45) / 0.225)
    for norm in norms:
        norm.momentum = 0.1


def keypoint_people(
    s: Setup, *, at_once: bool = False, few: bool = False, timed: bool = True, pinned: bool = False, **how: Any
) -> Step:
    """Keypoint R-CNN by torchvision's reference evaluate(): it waits before the model, and outputs go to the host one by one."""
    from torchvision.models.detection import roi_heads

    way, high, wide, most = How(**how), s.size(480, 96), s.size(640, 128), s.size(50, 3)
    sizes: dict[str, Any] = {"min_size": s.size(640, 96), "max_size": s.size(1066, 128), "box_detections_per_img": most}
    model: Any = _vision("keypointrcnn_resnet50_fpn", weights_backbone=None, **sizes)
    _settle(model.backbone, torch.rand(2, 3, s.size(160, 96), s.size(160, 96)))
    model = _placed(s, way, model).eval()
    theirs = roi_heads.heatmaps_to_keypoints
    mine: Any = (lambda maps, rois: _said_once(maps, rois, at_once, few)) if at_once or few else theirs
    pictures = [s.pin(torch.rand(3, high, wide)) if pinned else torch.rand(3, high, wide) for _ in range(2)]

    @torch.inference_mode()
    def step() -> list[dict[str, Tensor]]:
        _precision(way)
        images = [picture.to(s.device, non_blocking=pinned) for picture in pictures]
        if timed:
            s.synchronize()
        roi_heads.heatmaps_to_keypoints = mine
        try:
            with _casting(s, way):
                outputs = model(images)
        finally:
            roi_heads.heatmaps_to_keypoints = theirs
        return [{name: value.to("cpu") for name, value in one.items()} for one in outputs]

    return step


def _opinions(count: int, words: int) -> tuple[list[str], Any]:
    """Opinions of films, and a tokenizer of the library over their words, as nothing is fetched."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    drawn = random.Random(0)
    known = ["".join(drawn.choices("etaoinshrdlucmfwyp", k=drawn.randint(2, 9))) for _ in range(words)]
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *known]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    return [" ".join(drawn.choices(known, k=drawn.randint(10, 40))).capitalize() + "." for _ in range(count)], tokenizer


def distilbert_opinion(s: Setup, *, requests: int = 1, prepared: bool = False, **how: Any) -> Step:
    """DistilBERT says of one opinion a call whether it is a good one, as a small web service does: words, model, softmax, label."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    way, length, words = How(**how), s.size(64, 48), s.size(30_522, 401)
    config = DistilBertConfig(
        vocab_size=words, dim=s.size(768, 32), n_layers=s.size(6, 1), n_heads=s.size(12, 2), hidden_dim=s.size(3072, 64),
        num_labels=2, attn_implementation=way.attention,
    )  # fmt: skip
    model = _placed(s, way, DistilBertForSequenceClassification(config)).eval()
    run = _call(s, way, model)
    opinions, tokenizer = _opinions(16, s.size(4000, 300))
    turn, labels = counter(), {0: "NEGATIVE", 1: "POSITIVE"}

    def encoded(texts: list[str]) -> tuple[Tensor, Tensor]:
        batch = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        return batch["input_ids"], batch["attention_mask"]

    ready = [encoded([text]) for text in opinions] if prepared else []
    ids, mask = (tensor.to(s.device) for tensor in encoded(opinions[:requests]))
    hidden = torch.finfo(torch.float32).min

    @torch.no_grad()
    def chances() -> Tensor:
        """The mask as the library makes it, since it makes a constant on the host."""
        seen = ((1 - mask.float()) * hidden)[:, None, None, :].expand(-1, 1, length, -1)
        return model(input_ids=ids, attention_mask=seen).logits.softmax(-1)  # type: ignore[no-any-return]

    outcome: list[Tensor] = []

    def noted() -> None:
        _precision(way)
        outcome[:] = [chances()]

    replay = capture(noted, s) if way.graph else None

    @torch.no_grad()
    def step() -> list[dict[str, Any]]:
        _precision(way)
        at = next(turn) * requests
        if prepared:
            given = ready[at % len(ready)]
        else:
            given = encoded([opinions[(at + which) % len(opinions)] for which in range(requests)])
        if replay:
            ids.copy_(given[0])
            mask.copy_(given[1])
            replay()
            likely = outcome[0]
        else:
            inputs = {"input_ids": given[0].to(s.device), "attention_mask": given[1].to(s.device)}
            with _casting(s, way):
                likely = run(**inputs).logits.float().softmax(-1)
        return [{"label": labels[int(row.argmax())], "score": float(row.max())} for row in likely.cpu().numpy()]

    return step


def _sdpa_of_t5(
    self: Any, hidden_states: Tensor, mask: Any = None, key_value_states: Any = None, position_bias: Any = None, **_: Any
) -> tuple[Tensor, Tensor, None]:
    """Bias and mask are added once, in the first layer, and handed on."""
    rows, length = hidden_states.shape[:2]
    heads = (rows, length, self.n_heads, self.key_value_proj_dim)
    query, key, value = (linear(hidden_states).view(heads).transpose(1, 2) for linear in (self.q, self.k, self.v))
    if position_bias is None:
        position_bias = self.compute_bias(length, length, device=hidden_states.device).to(query.dtype)
        if mask is not None:
            position_bias = (position_bias + mask).contiguous()
    seen = F.scaled_dot_product_attention(query, key, value, attn_mask=position_bias, scale=1.0)
    return self.o(seen.transpose(1, 2).reshape(rows, length, -1)), position_bias, None


def protein_vectors(s: Setup, *, means_there: bool = False, pinned: bool = False, **how: Any) -> Step:
    """ProtT5's encoder in fp16 on eight proteins; NumPy takes each protein's mean of what is fetched, as in the authors' script."""
    from transformers import T5Config, T5EncoderModel

    way, rows, length, size = How(**how), s.size(8, 2), s.size(512, 16), s.size(1024, 32)
    config = T5Config(
        vocab_size=128, d_model=size, d_kv=s.size(128, 16), d_ff=s.size(16_384, 64), num_layers=s.size(4, 1), num_heads=s.size(32, 2),
        use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model: Any = T5EncoderModel(config)
    if way.fused_norms:
        _fuse_norms(model)
    for module in model.modules() if way.attention == SDPA else ():
        if type(module).__name__ == "T5Attention":
            module.forward = MethodType(_sdpa_of_t5, module)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    code = {letter: at for at, letter in enumerate("ALGVSREDTIPKFQNYMHWCXBOUZ", 3)}
    drawn = random.Random(0)
    proteins = ["".join(drawn.choices("ALGVSREDTIPKFQNYMHWC", k=int(length * (0.5 + 0.5 * row / (rows - 1))) - 1)) for row in range(rows)]
    longs = [len(protein) for protein in proteins]
    counts = torch.tensor(longs, device=s.device)
    residues = torch.arange(length, device=s.device) < counts[:, None]
    fetched = s.pin(torch.empty(rows, length, size, dtype=way.dtype)) if pinned else None

    def encoded() -> tuple[Tensor, Tensor]:
        """Words of one letter and an end, padded."""
        lists = [[code[letter] for letter in protein] + [1] for protein in proteins]
        ids = torch.tensor([row + [0] * (length - len(row)) for row in lists])
        return ids.to(s.device), (ids != 0).long().to(s.device)

    @torch.no_grad()
    def step() -> dict[str, Any]:
        _precision(way)
        ids, mask = encoded()
        vectors = run(input_ids=ids, attention_mask=mask).last_hidden_state
        if means_there:
            means = (vectors.float() * residues[..., None]).sum(1) / counts[:, None]
            return dict(zip(proteins, means.to(vectors.dtype).cpu().numpy(), strict=True))
        if fetched is not None:
            fetched.copy_(vectors, non_blocking=True)
            s.synchronize()
            embedding = fetched.numpy()
        else:
            embedding = vectors.cpu().numpy()
        return {protein: embedding[row][: longs[row]].mean(axis=0) for row, protein in enumerate(proteins)}

    return step


WORKLOADS = (
    _public(
        "squad_answers",
        "A small RoBERTa of transformers in bf16 autocast on 32 passages of 384; Python loops find answers in NumPy's logits.",
        squad_answers, {"autocast": BF16},
        {"host-bound": {"there": True}, "unfused-attention": {"attention": SDPA}, "dtype-casts": {"autocast": None, "dtype": BF16},
         "memcpy": {"pinned": True}, "sync-stall": {"together": True}},
    ),
    _public(
        "convnext_flowers",
        "ConvNeXt of timm by its train.py, bf16 autocast on 64 photos, NCHW; a mean model tensor by tensor, the loss is read.",
        convnext_flowers, {"autocast": BF16},
        {"memory-layout": {"channels_last": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"averaged_at_once": True},
         "optimizer-foreach/fused": {"optimizer": "fused"}},
    ),
    _public(
        "keypoint_people",
        "Keypoint R-CNN of torchvision, TF32 convolutions, NCHW, on 2 pictures; joints are read from heatmaps box by box.",
        keypoint_people, {},
        {"sync-stall": {"at_once": True}, "launch-gap": {"few": True}, "sync-stall/timer": {"timed": False}, "memcpy": {"pinned": True},
         "memory-layout": {"channels_last": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "wav2vec_letters",
        "wav2vec 2.0 of transformers learns letters by CTC, fp16 with a GradScaler; lists of floats are padded in this process.",
        wav2vec_letters, {"autocast": HALF, "scaler": True},
        {"host-bound": {"arrays": True}, "data-loading": {"workers": True}, "amp-scaler-sync": {"autocast": BF16, "scaler": False},
         "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "distilbert_opinion",
        "DistilBERT of transformers, FP32, says of one opinion of 64 words a call whether it is good; attention written out.",
        distilbert_opinion, {},
        {"graph-candidate": {"graph": True}, "launch-gap": {"compiled": COMPILED}, "launch-gap/requests": {"requests": 8},
         "unfused-attention": {"attention": SDPA}, "precision": {"autocast": BF16}, "host-bound": {"prepared": True}},
        shared={"launch-gap/requests": 8.0},
    ),
    _public(
        "gat_tissues", "torch_geometric's example ppi.py, GAT in FP32 on one graph of 61,000 edges a step; loops are added in each layer.",
        gat_tissues, {},
        {"sync-stall/loops": {"loops_once": True}, "sync-stall": {"read": False}, "memcpy": {"resident": True},
         "precision/tf32": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "protein_vectors",
        "ProtT5's encoder of transformers in fp16 on 8 proteins of up to 512; means are NumPy's, attention and norms written out.",
        protein_vectors, {"dtype": HALF},
        {"host-bound": {"means_there": True}, "memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA},
         "unfused-norm": {"fused_norms": True}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "trocr_lines", "TrOCR of transformers, tuned in FP32 on 8 lines of handwriting from pageable memory; the loss is read.",
        trocr_lines, {},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"},
         "memcpy": {"pinned": True}, "gemm-alignment": {"vocabulary": 50_304}, "sync-stall": {"read": False}},
    ),
)  # fmt: skip
