"""Public models of cut-out hair, regions asked about and misused variables, by an author who has not read the rules."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_4 import _public

# Pictures.


def _positions(rel_pos: Tensor, size: int) -> Tensor:
    """VitDet's get_rel_pos for queries and keys of one size, with its index made on the device of the weights."""
    from torch.nn.functional import interpolate

    longest = 2 * size - 1
    if rel_pos.shape[0] != longest:
        rel_pos = interpolate(rel_pos.T[None], size=longest, mode="linear")[0].T
    at = torch.arange(size, device=rel_pos.device)
    return rel_pos[at[:, None] - at[None, :] + size - 1]


def _vitdet(self: Any, hidden_state: Tensor, output_attentions: bool = False, **_: Any) -> tuple[Tensor]:
    """VitDetAttention with its tables kept from the first call on (`kept`), its products in one kernel (`fused`), or either."""
    from transformers.models.vitdet.modeling_vitdet import get_rel_pos

    batch, height, width, _dim = hidden_state.shape
    qkv = self.qkv(hidden_state).reshape(batch, height * width, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.reshape(3, batch * self.num_heads, height * width, -1).unbind(0)
    if self.kept:
        if (height, width) not in self.tables:
            self.tables[height, width] = _positions(self.rel_pos_h, height), _positions(self.rel_pos_w, width)
        down, across = self.tables[height, width]
    else:
        down, across = get_rel_pos(height, height, self.rel_pos_h), get_rel_pos(width, width, self.rel_pos_w)
    where = q.reshape(-1, height, width, q.shape[-1])
    rows, columns = torch.einsum("bhwc,hkc->bhwk", where, down), torch.einsum("bhwc,wkc->bhwk", where, across)
    if self.fused:
        bias = (rows[..., :, None] + columns[..., None, :]).reshape(batch, self.num_heads, height * width, height * width)
        heads = (part.reshape(batch, self.num_heads, height * width, -1) for part in (q, k, v))
        out = F.scaled_dot_product_attention(*heads, attn_mask=bias)
    else:
        scores = (q * self.scale) @ k.transpose(-2, -1)
        scores = scores.reshape(-1, height, width, height, width) + rows[..., :, None] + columns[..., None, :]
        out = scores.reshape(-1, height * width, height * width).softmax(-1) @ v
    out = out.reshape(batch, self.num_heads, height, width, -1).permute(0, 2, 3, 1, 4).reshape(batch, height, width, -1)
    return (self.proj(out),)


def hair_mattes(s: Setup, *, bytes_sent: bool = False, kept: bool = False, fused: bool = False, **how: Any) -> Step:
    """ViTMatte cuts a person out of a photo: the host makes floats of the photo and its trimap, and bytes of what comes back."""
    from transformers import VitDetConfig, VitMatteConfig, VitMatteForImageMatting

    way, side, layers = How(**how), s.size(1024, 64), s.size(12, 3)
    last = {2, 5, 8, 11} if layers == 12 else {2}
    backbone = VitDetConfig(
        hidden_size=s.size(384, 32), num_hidden_layers=layers, num_attention_heads=s.size(6, 2), num_channels=4, image_size=s.size(512, 64),
        pretrain_image_size=224, patch_size=16, window_size=s.size(14, 3), window_block_indices=sorted({*range(layers)} - last),
        residual_block_indices=sorted(last), use_relative_position_embeddings=True, out_features=[f"stage{layers}"],
    )  # fmt: skip
    widths: dict[str, Any] = {"convstream_hidden_sizes": [48, 96, 192], "fusion_hidden_sizes": [256, 128, 64, 32]}
    config = VitMatteConfig(backbone_config=backbone, hidden_size=s.size(384, 32), **widths)
    model: Any = VitMatteForImageMatting(config)
    for module in model.modules():
        if hasattr(module, "rel_pos_h"):
            nn.init.normal_(module.rel_pos_h, std=0.02)
            nn.init.normal_(module.rel_pos_w, std=0.02)
            if kept or fused:
                module.kept, module.fused, module.tables = kept, fused, {}
                module.forward = MethodType(_vitdet, module)
    for module in model.decoder.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            module.reset_parameters()
    nn.init.normal_(model.decoder.matting_head.matting_convs[-1].weight, std=2.0)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    drawn = np.random.default_rng(0)
    photos = [drawn.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(4)]
    trimaps = [drawn.choice(np.array([0, 128, 255], dtype=np.uint8), (side, side)) for _ in range(4)]
    turn = 0

    def prepared(photo: Any, trimap: Any) -> Tensor:
        if bytes_sent:
            both = torch.cat([torch.from_numpy(part).to(s.device) for part in (photo, trimap[..., None])], -1)
            x = both.permute(2, 0, 1).float() / 255
            x[:3] = (x[:3] - 0.5) / 0.5
            return x[None].contiguous()
        colours = (photo.astype(np.float32) / 255 - 0.5) / 0.5
        edge = trimap.astype(np.float32) / 255
        x = np.concatenate([colours.transpose(2, 0, 1), edge[None]])
        return torch.from_numpy(x)[None].to(s.device)

    @torch.no_grad()
    def step() -> Any:
        nonlocal turn
        _precision(way)
        photo, trimap = photos[turn % 4], trimaps[turn % 4]
        turn += 1
        x = prepared(photo, trimap)
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            alpha = run(pixel_values=x).alphas[0, 0].float()
        if bytes_sent:
            alpha = torch.where(torch.from_numpy(trimap).to(s.device) == 255, 1.0, alpha)
            return (alpha * 255).to(torch.uint8).cpu().numpy()
        alpha = alpha.cpu().numpy()
        alpha[trimap == 255] = 1.0
        return (alpha * 255).astype(np.uint8)

    return step


class _Regions(torch.utils.data.Dataset[tuple[Any, ...]]):
    """Questions about photos, each with what a detector found there, as in LXMERT's VQATorchDataset."""

    def __init__(self, s: Setup, words: int, answers: int) -> None:
        drawn = np.random.default_rng(0)
        self.count, self.length, self.answers = s.size(1 << 14, 64), s.size(20, 6), answers
        corners = np.sort(drawn.random((s.size(256, 8), s.size(36, 4), 2, 2)), 2).reshape(s.size(256, 8), -1, 4)
        self.boxes = (corners * np.array([640, 480, 640, 480])).astype(np.float32)
        self.features = drawn.standard_normal((*self.boxes.shape[:2], s.size(2048, 16)), dtype=np.float32)
        self.questions = drawn.integers(1, words, (1024, self.length))
        self.lengths = drawn.integers(self.length // 2, self.length + 1, 1024)
        self.labels = [{int(at): 0.3 * (1 + n) for n, at in enumerate(drawn.integers(0, answers, 3))} for _ in range(1024)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Any, ...]:
        photo, question = at % len(self.boxes), at % 1024
        boxes, features = self.boxes[photo].copy(), self.features[photo].copy()
        boxes[:, (0, 2)] /= 640
        boxes[:, (1, 3)] /= 480
        np.testing.assert_array_less(boxes, 1 + 1e-5)
        np.testing.assert_array_less(-boxes, 1e-5)
        mask = (np.arange(self.length) < self.lengths[question]).astype(np.int64)
        target = torch.zeros(self.answers)
        for answer, score in self.labels[question].items():
            target[answer] = score
        return at, features, boxes, self.questions[question] * mask, mask, target


def _lxmert_attention(self: Any, hidden_states: Tensor, context: Tensor, attention_mask: Any = None, **_: Any) -> tuple[Tensor]:
    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.attention_head_size).transpose(1, 2)

    q, k, v = heads(self.query(hidden_states)), heads(self.key(context)), heads(self.value(context))
    mask = attention_mask if attention_mask is None else attention_mask.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout.p if self.training else 0.0)
    return (out.transpose(1, 2).flatten(2),)


def scene_regions(s: Setup, *, workers: int = 0, later: bool = False, sent: bool = False, fused: bool = False, **how: Any) -> Step:
    """LXMERT learns to answer questions about 36 regions of a photo, by its authors' loop: answers are noted in each step."""
    from transformers import LxmertConfig, LxmertForQuestionAnswering

    way, words, answers, drop = How(**how), s.size(30522, 101), s.size(3129, 11), 0.1 * s.size(1, 0)
    config = LxmertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        l_layers=s.size(9, 2), x_layers=s.size(5, 1), r_layers=s.size(5, 1), visual_feat_dim=s.size(2048, 16), num_qa_labels=answers,
        hidden_dropout_prob=drop, attention_probs_dropout_prob=drop,
    )  # fmt: skip
    model: Any = LxmertForQuestionAnswering(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "LxmertAttention":
                module.forward = MethodType(_lxmert_attention, module)
    model = _placed(s, way, model).train()
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters)
    count = workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        _Regions(s, words, answers), s.size(64, 4), num_workers=count, pin_memory=s.cuda, drop_last=True, persistent_workers=count > 0
    )  # fmt: skip
    names = [f"answer {at}" for at in range(answers)]
    said: dict[int, str] = {}
    waiting: list[tuple[Any, Tensor, Any]] = []

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def note(questions: Any, labels: Any) -> None:
        for question, label in zip(questions.tolist(), labels.numpy(), strict=True):
            said[question] = names[label]

    def step() -> dict[int, str]:
        _precision(way)
        questions, *host = next(batches)
        features, boxes, ids, mask, target = (part.to(s.device, non_blocking=sent) for part in host)
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(input_ids=ids, visual_feats=features, visual_pos=boxes, attention_mask=mask).question_answering_score
            loss = F.binary_cross_entropy_with_logits(logits.float(), target) * answers
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        labels = logits.detach().max(1)[1]
        if not later:
            note(questions, labels.cpu())
            return said
        there = s.pin(torch.empty(labels.shape, dtype=labels.dtype))
        there.copy_(labels, non_blocking=True)
        ready = torch.cuda.Event() if s.cuda else None
        if ready:
            ready.record()
        waiting.append((questions, there, ready))
        if len(waiting) > 1:
            before, known, done = waiting.pop(0)
            if done:
                done.synchronize()
            note(before, known)
        return said

    return step


# Graphs.


class _Misuse(nn.Module):
    """A gated graph network on programs: which of five variables stands at the slot."""

    def __init__(self, tokens: int, kinds: int, width: int, rounds: int) -> None:
        from torch_geometric.nn import GatedGraphConv

        super().__init__()
        self.tokens, self.kinds = nn.Embedding(tokens, width), nn.Embedding(kinds, width)
        self.start = nn.Linear(width, width)
        self.convs = nn.ModuleList(GatedGraphConv(width, rounds, aggr="mean") for _ in range(2))
        self.score = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, tokens: Tensor, kind: Tensor, edge_index: Tensor, slot: Tensor, candidates: Tensor) -> Tensor:
        known = (tokens != 0).unsqueeze(-1)
        x = (self.tokens(tokens) * known).sum(1) / known.sum(1).clamp(min=1)
        x = self.start(x + self.kinds(kind))
        for conv in self.convs:
            x = x + conv(x, edge_index)
        pairs = torch.cat([x[slot][:, None].expand(-1, 5, -1), x[candidates.view(-1, 5)]], -1)
        return self.score(pairs).squeeze(-1)  # type: ignore[no-any-return]


class _Programs:
    """Graphs of programs, on the device as one, of which a batch is cut out."""

    def __init__(self, graphs: list[Any], device: torch.device) -> None:
        self.nodes, self.edges = (np.array([getattr(graph, count) for graph in graphs]) for count in ("num_nodes", "num_edges"))
        parts = ("tokens", "kind", "slot_index", "candidate_index")
        self.tokens, self.kind, self.slot, self.candidates = (torch.cat([graph[part] for graph in graphs]).to(device) for part in parts)
        self.edge_index = torch.cat([graph.edge_index for graph in graphs], 1).to(device)
        starts = [np.cumsum(counts) - counts for counts in (self.nodes, self.edges)]
        self.table = torch.from_numpy(np.stack([self.nodes, self.edges, *starts])).to(device)

    @staticmethod
    def _places(counts: Tensor, starts: Tensor, total: int) -> tuple[Tensor, Tensor]:
        first = counts.cumsum(0) - counts
        return torch.arange(total, device=counts.device) + torch.repeat_interleave(starts - first, counts, output_size=total), first

    def cut(self, chosen: Any) -> tuple[Tensor, ...]:
        at = torch.from_numpy(chosen).to(self.table.device)
        nodes, edges, node_starts, edge_starts = self.table[:, at]
        node_at, first = self._places(nodes, node_starts, int(self.nodes[chosen].sum()))
        total = int(self.edges[chosen].sum())
        edge_at, _ = self._places(edges, edge_starts, total)
        edge_index = self.edge_index[:, edge_at] + torch.repeat_interleave(first, edges, output_size=total)
        candidates = self.candidates.view(-1, 5)[at] + first[:, None]
        return self.tokens[node_at], self.kind[node_at], edge_index, self.slot[at] + first, candidates.view(-1)


def misused_variables(
    s: Setup, *, batch: int = 96, resident: bool = False, kept: bool = False, pinned: bool = False, zero: bool = True, **how: Any
) -> Step:
    """GatedGraphConv finds misused variables: syntax trees are put together in the loop, the loss and the hits are read in each step."""
    from torch_geometric.data import Batch, Data

    way, tokens, kinds, batch = How(**how), s.size(20_000, 50), s.size(120, 7), s.size(batch, batch // 24)
    drawn = np.random.default_rng(0)

    def program() -> Any:
        nodes = int(drawn.integers(s.size(150, 8), s.size(500, 16)))
        tree = np.stack([(np.arange(1, nodes) * drawn.random(nodes - 1)).astype(np.int64), np.arange(1, nodes)])
        order = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
        uses = drawn.integers(0, nodes, (2, nodes // 3))
        edges = np.concatenate([tree, tree[::-1], order, uses], 1)
        words = drawn.integers(1, tokens, (nodes, 4)) * (np.arange(4) < drawn.integers(1, 5, (nodes, 1)))
        return Data(
            tokens=torch.from_numpy(words), kind=torch.from_numpy(drawn.integers(0, kinds, nodes)), edge_index=torch.from_numpy(edges),
            slot_index=torch.from_numpy(drawn.integers(0, nodes, 1)), candidate_index=torch.from_numpy(drawn.integers(0, nodes, 5)),
            num_nodes=nodes,
        )  # fmt: skip

    graphs = [program() for _ in range(s.size(1500, 24))]
    programs = _Programs(graphs, s.device) if resident else None
    model = _placed(s, way, _Misuse(tokens, kinds, s.size(128, 16), s.size(4, 2))).train()
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, torch.optim.Adam)
    totals, log = torch.zeros(2, device=s.device), [0.0, 0.0]
    right = torch.zeros(batch, dtype=torch.long, device=s.device)

    def collated(chosen: Any) -> tuple[Tensor, ...]:
        data = Batch.from_data_list([graphs[at] for at in chosen])
        data = data.pin_memory().to(s.device, non_blocking=True) if pinned and s.cuda else data.to(s.device)
        return data.tokens, data.kind, data.edge_index, data.slot_index, data.candidate_index

    def step() -> None:
        _precision(way)
        chosen = drawn.choice(len(graphs), batch, replace=False)
        inputs = programs.cut(chosen) if programs else collated(chosen)
        optimizer.zero_grad(set_to_none=not zero)
        with _casting(s, way):
            scores = model(*inputs)
        loss = F.cross_entropy(scores.float(), right)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        hits = (scores.argmax(-1) == 0).float().mean()
        if kept:
            totals.add_(torch.stack([loss.detach(), hits]))
        else:
            log[0] += loss.item()
            log[1] += hits.item()

    return step


WORKLOADS = (
    _public(
        "hair_mattes", "ViTMatte of transformers, FP32, a photo of 1024 x 1024 that the host makes floats and looks up positions for.",
        hair_mattes, {},
        {"host-bound": {"bytes_sent": True}, "memcpy": {"kept": True}, "unfused-attention": {"fused": True}, "precision": {"tf32": True},
         "unfused-elementwise": {"compiled": COMPILED}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "scene_regions", "LXMERT of transformers, training in FP32 on 64 questions on 36 regions that the trainer loads; answers are read.",
        scene_regions, {},
        {"data-loading": {"workers": 6}, "sync-stall": {"later": True}, "precision": {"autocast": BF16},
         "unfused-attention": {"fused": True}, "optimizer-foreach": {"optimizer": "fused"}, "memcpy": {"sent": True}},
    ),
    _public(
        "misused_variables", "GatedGraphConv of torch_geometric, training in FP32 on 96 trees batched in the loop; two numbers are read.",
        misused_variables, {},
        {"host-bound": {"resident": True}, "sync-stall": {"kept": True}, "memcpy": {"pinned": True}, "grad-zeroing": {"zero": False},
         "precision": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
)  # fmt: skip
