"""Training of a Temporal Fusion Transformer (Lim et al., 2021) on hourly arrivals at the emergency departments of many clinics.

A week of history and the known future of a day (calendar, holidays, the weather forecast) give the 10, 50 and 90 % quantiles of arrivals in the
next 24 hours. All series lie on the GPU; a batch is windows drawn at random from them. FP32 with TF32 matrix products, clipping, an
exponential average of the weights for evaluation. One step is one update.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from workloads.base import Setup, Step, advised

QUANTILES = (0.1, 0.5, 0.9)
HISTORY, KNOWN = 3, 4  # measured series; real-valued series known ahead
HOURS, WEEKDAYS, HOLIDAYS = 24, 7, 9


class GLU(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.linear(x), dim=-1)


class GRN(nn.Module):
    """Gated residual network."""

    def __init__(self, inputs: int, hidden: int, outputs: int | None = None, context: int | None = None, dropout: float = 0.1) -> None:
        super().__init__()
        outputs = outputs or hidden
        self.first = nn.Linear(inputs, hidden)
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.second = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.gate = GLU(hidden, outputs)
        self.norm = nn.LayerNorm(outputs)
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else None

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        hidden = self.first(x)
        if self.context is not None and context is not None:
            added = self.context(context)
            hidden = hidden + (added.unsqueeze(1) if x.dim() == 3 else added)
        hidden = self.second(F.elu(hidden))
        skipped = x if self.skip is None else self.skip(x)
        return self.norm(self.gate(self.dropout(hidden)) + skipped)


class VariableSelection(nn.Module):
    """Weighs the variables of each moment; x is [..., variables, width]."""

    def __init__(self, variables: int, width: int, context: int | None = None) -> None:
        super().__init__()
        self.joint = GRN(variables * width, width, variables, context)
        self.each = nn.ModuleList(GRN(width, width) for _ in range(variables))

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(self.joint(x.flatten(-2), context), -1)
        changed = torch.stack([grn(x[..., i, :]) for i, grn in enumerate(self.each)], dim=-2)
        return (changed * weights.unsqueeze(-1)).sum(-2), weights


class InterpretableAttention(nn.Module):
    """Heads with their own queries and keys share one value, so that the average of their weights can be read."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, self.head, bias=False)
        self.out = nn.Linear(self.head, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, asked: int) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        query = self.query(x[:, -asked:]).view(batch, asked, self.heads, self.head).transpose(1, 2)
        key = self.key(x).view(batch, length, self.heads, self.head).transpose(1, 2)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.head)
        later = torch.ones(asked, length, dtype=torch.bool, device=x.device).triu(length - asked + 1)
        weights = self.dropout(torch.softmax(scores.masked_fill(later, float("-inf")), -1))
        read = weights @ self.value(x).unsqueeze(1)
        return self.out(read.mean(1)), weights.mean(1)


class TemporalFusion(nn.Module):
    def __init__(self, clinics: int, kinds: int, width: int, heads: int) -> None:
        super().__init__()
        self.clinic, self.kind, self.beds = nn.Embedding(clinics, width), nn.Embedding(kinds, width), nn.Linear(1, width)
        self.history = nn.ModuleList(nn.Linear(1, width) for _ in range(HISTORY))
        self.known = nn.ModuleList(nn.Linear(1, width) for _ in range(KNOWN))
        self.calendar = nn.ModuleList(nn.Embedding(size, width) for size in (HOURS, WEEKDAYS, HOLIDAYS))
        self.static_selection = VariableSelection(3, width)
        self.selection_context, self.enrichment_context = GRN(width, width), GRN(width, width)
        self.state_h, self.state_c = GRN(width, width), GRN(width, width)
        self.past_selection = VariableSelection(HISTORY + KNOWN + 3, width, width)
        self.future_selection = VariableSelection(KNOWN + 3, width, width)
        self.encoder, self.decoder = nn.LSTM(width, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.lstm_gate, self.lstm_norm = GLU(width, width), nn.LayerNorm(width)
        self.enrichment = GRN(width, width, context=width)
        self.attention = InterpretableAttention(width, heads)
        self.attention_gate, self.attention_norm = GLU(width, width), nn.LayerNorm(width)
        self.feed = GRN(width, width)
        self.out_gate, self.out_norm = GLU(width, width), nn.LayerNorm(width)
        self.out = nn.Linear(width, len(QUANTILES))

    def forward(self, clinic: Tensor, kind: Tensor, beds: Tensor, past: Tensor, known: Tensor, calendar: Tensor) -> Tensor:
        encoded = past.size(1)
        asked = known.size(1) - encoded
        static, _ = self.static_selection(torch.stack((self.clinic(clinic), self.kind(kind), self.beds(beds.unsqueeze(-1))), dim=1))
        ahead = [layer(known[..., i : i + 1]) for i, layer in enumerate(self.known)]
        ahead += [layer(calendar[..., i]) for i, layer in enumerate(self.calendar)]
        ahead_all = torch.stack(ahead, dim=2)
        measured = torch.stack([layer(past[..., i : i + 1]) for i, layer in enumerate(self.history)], dim=2)

        context = self.selection_context(static)
        past_inputs, _ = self.past_selection(torch.cat((measured, ahead_all[:, :encoded]), 2), context)
        future_inputs, _ = self.future_selection(ahead_all[:, encoded:], context)
        state = (self.state_h(static).unsqueeze(0), self.state_c(static).unsqueeze(0))
        encoded_states, state = self.encoder(past_inputs, state)
        decoded_states, _ = self.decoder(future_inputs, state)

        inputs = torch.cat((past_inputs, future_inputs), 1)
        local = self.lstm_norm(self.lstm_gate(torch.cat((encoded_states, decoded_states), 1)) + inputs)
        enriched = self.enrichment(local, self.enrichment_context(static))
        read, _ = self.attention(enriched, asked)
        x = self.attention_norm(self.attention_gate(read) + enriched[:, -asked:])
        x = self.out_norm(self.out_gate(self.feed(x)) + local[:, -asked:])
        return self.out(x)


def pinball(predicted: Tensor, target: Tensor, quantiles: Tensor) -> Tensor:
    error = target.unsqueeze(-1) - predicted
    return torch.maximum(quantiles * error, (quantiles - 1) * error).sum(-1).mean()


class LateReader:
    """Scalars are copied to pinned memory without waiting, and read when the next ones have been launched."""

    def __init__(self, s: Setup, count: int) -> None:
        self.slots = [s.pin(torch.zeros(count)) for _ in range(2)]
        self.events = [torch.cuda.Event() if s.cuda else None for _ in range(2)]
        self.turn, self.waiting = 0, None

    def swap(self, values: list[Tensor], note: dict[str, float]) -> tuple[list[float], dict[str, float]]:
        """Hands in this step's values and gets the previous ones (at first its own)."""
        slot, event = self.slots[self.turn], self.events[self.turn]
        slot[: len(values)].copy_(torch.stack(values), non_blocking=True)
        if event is not None:
            event.record()
        now = (slot, event, len(values), note)
        ready, self.waiting, self.turn = self.waiting or now, now, 1 - self.turn
        if ready[1] is not None:
            ready[1].synchronize()
        return ready[0][: ready[2]].tolist(), ready[3]


def clinic_arrivals(s: Setup, *, compiled: bool = False, fused_chains: bool = False, fused_adam: bool = False, light_host: bool = False) -> Step:
    torch.manual_seed(31)
    rng = np.random.default_rng(31)
    if s.cuda:
        torch.set_float32_matmul_precision("high")
    clinics, hours = s.size(240, 6), s.size(24 * 365, 24 * 20)
    batch, encoded, asked, width = s.size(256, 4), s.size(168, 24), s.size(24, 6), s.size(128, 16)

    clock = np.arange(hours)
    level = rng.lognormal(1.8, 0.5, (clinics, 1))
    rhythm = 1 + 0.5 * np.sin(2 * np.pi * (clock - 8) / 24) + 0.15 * np.sin(2 * np.pi * clock / 168)
    arrivals = rng.poisson(level * rhythm).astype(np.float32)
    mean, deviation = arrivals.mean(1, keepdims=True), arrivals.std(1, keepdims=True)
    scaled = (arrivals - mean) / deviation
    others = rng.normal(size=(clinics, hours, HISTORY - 1)).astype(np.float32)
    past_series = torch.from_numpy(np.concatenate((scaled[..., None], others), -1).astype(np.float32)).to(s.device)
    known_series = torch.from_numpy(rng.normal(size=(clinics, hours, KNOWN)).astype(np.float32)).to(s.device)
    holiday = np.repeat(np.where(rng.random(hours // 24) < 0.04, rng.integers(1, HOLIDAYS, hours // 24), 0), 24)
    calendar_series = torch.from_numpy(np.stack((clock % 24, clock // 24 % 7, holiday), -1)).to(s.device)
    kinds = torch.from_numpy(rng.integers(0, 5, clinics)).to(s.device)
    beds = torch.from_numpy(rng.normal(size=clinics).astype(np.float32)).to(s.device)
    scales = torch.from_numpy(deviation[:, 0]).to(s.device)

    model = TemporalFusion(clinics, 5, width, heads=4).to(s.device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    # the fused Adam also keeps its counts of steps on the GPU, which is what light_host wants of it
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True if compiled or fused_adam or light_host else None)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=20_000)
    quantiles = torch.tensor(QUANTILES, device=s.device)
    window = torch.arange(encoded + asked, device=s.device)
    done = 0
    network, loss_of = model, pinball
    if compiled or fused_chains:
        network, loss_of = s.compile(model), s.compile(pinball)
    if light_host:
        model.train()
        parameters = list(model.parameters())
        averaged = [value.detach() for value in average.module.parameters()]
        current = [value.detach() for value in parameters]
        reader = LateReader(s, 4)

        @torch.no_grad()
        def update_average() -> None:
            if done == 0:
                torch._foreach_copy_(averaged, current)
            else:
                torch._foreach_lerp_(averaged, current, 1 - 0.999)
            average.n_averaged += 1

    def step() -> dict[str, float]:
        nonlocal done
        if not light_host:
            model.train()
        clinic = torch.randint(clinics, (batch,), device=s.device)
        start = torch.randint(hours - encoded - asked, (batch,), device=s.device)
        moments = start.unsqueeze(1) + window
        rows = clinic.unsqueeze(1)
        series = past_series[rows, moments]
        target = series[:, encoded:, 0]

        predicted = network(clinic, kinds[clinic], beds[clinic], series[:, :encoded], known_series[rows, moments], calendar_series[moments])
        loss = loss_of(predicted, target, quantiles)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters if light_host else model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if light_host:
            update_average()
        else:
            average.update_parameters(model)
        done += 1

        if light_host:
            values = [loss.detach()]
            if done % 10 == 0:
                with torch.no_grad():
                    covered = (target >= predicted[..., 0]) & (target <= predicted[..., 2])
                    missed = (predicted[..., 1] - target).abs() * scales[clinic].unsqueeze(1)
                    values += [norm, covered.float().mean(), missed.mean()]
            numbers, noted = reader.swap(values, {"lr": scheduler.get_last_lr()[0]})
            report = {"loss": numbers[0], **noted}
            return report | dict(zip(("norm", "coverage", "mae_arrivals"), numbers[1:], strict=False))

        report = {"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}
        if done % 10 == 0:
            with torch.no_grad():
                covered = (target >= predicted[..., 0]) & (target <= predicted[..., 2])
                missed = (predicted[..., 1] - target).abs() * scales[clinic].unsqueeze(1)
                report |= {"norm": norm.item(), "coverage": covered.float().mean().item(), "mae_arrivals": missed.mean().item()}
        return report

    return step


PROGRAM = advised(
    "clinic_arrivals",
    "A Temporal Fusion Transformer in training on 256 windows on the GPU, TF32, clipping, average of the weights.",
    clinic_arrivals,
    {
        "launch-gap": {"compiled": True},
        "unfused-elementwise": {"fused_chains": True},
        "optimizer-foreach": {"fused_adam": True},
        "host-bound": {"light_host": True},
    },
)
