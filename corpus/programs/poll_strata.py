"""Multilevel regression and poststratification of a national poll, by Hamiltonian Monte Carlo.

The poll's answers are counted in cells (state x age x ethnicity x schooling x sex). A hierarchical logistic regression shares strength between
cells; many chains walk its posterior side by side, in float64, and each draw is turned into the opinion of every state with the census.
A step is one transition of all chains: the leapfrog trajectory, acceptance, adaptation of step size and mass, and the states' opinions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributions as dist
from torch import Tensor

from workloads.base import Setup, Step, advised


@dataclass
class Poll:
    """Index columns of the cells, the census count of each, and for the cells with answers: how many, and how many said yes."""

    columns: dict[str, Tensor]
    levels: dict[str, int]
    census: Tensor
    predictors: Tensor
    asked: Tensor
    answers: Tensor
    yes: Tensor


def make_poll(states: int, ages: int, respondents: int, seed: int = 0) -> Poll:
    rng = np.random.default_rng(seed)
    shape = {"state": states, "age": ages, "eth": 5, "edu": 5, "sex": 2}
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape.values()), indexing="ij"), axis=-1).reshape(-1, len(shape))
    column = dict(zip(shape, grid.T, strict=False))
    column["state_eth"] = column["state"] * 5 + column["eth"]
    column["age_edu"] = column["age"] * 5 + column["edu"]
    levels = shape | {"state_eth": states * 5, "age_edu": ages * 5}

    population = rng.gamma(1.2, 6.0e6, size=states)[column["state"]]
    share = rng.dirichlet(np.ones(5), size=states)[column["state"], column["eth"]] * rng.dirichlet(np.full(5, 4.0), size=ages)[column["age"], column["edu"]]
    census = np.ceil(population * share * rng.dirichlet(np.full(ages, 8.0))[column["age"]] / 2)
    previous_vote, income = rng.normal(0.0, 0.4, size=states), rng.normal(size=states)
    predictors = np.stack([previous_vote[column["state"]], income[column["state"]], column["sex"] - 0.5], axis=1)
    logit = -0.2 + predictors @ np.array([1.1, 0.15, -0.25])
    for name, scale in {"state": 0.25, "age": 0.3, "eth": 0.6, "edu": 0.2, "state_eth": 0.15, "age_edu": 0.1}.items():
        logit += rng.normal(0.0, scale, size=levels[name])[column[name]]
    weight = census * rng.uniform(0.4, 1.6, size=len(census))  # who answers is not quite who there is
    answers = rng.multinomial(respondents, weight / weight.sum())
    yes = rng.binomial(answers, 1 / (1 + np.exp(-logit)))
    asked = np.flatnonzero(answers)
    return Poll(
        columns={name: torch.from_numpy(index.astype(np.int64)) for name, index in column.items()},
        levels=levels,
        census=torch.from_numpy(census),
        predictors=torch.from_numpy(predictors),
        asked=torch.from_numpy(asked),
        answers=torch.from_numpy(answers[asked].astype(np.float64)),
        yes=torch.from_numpy(yes[asked].astype(np.float64)),
    )


class Regression:
    """The posterior over a flat vector of parameters, for all chains at once."""

    groups = ("state", "age", "eth", "edu", "state_eth", "age_edu")

    def __init__(self, poll: Poll, device: torch.device) -> None:
        self.index = {name: poll.columns[name].to(device) for name in self.groups}
        self.asked_index = {name: poll.columns[name][poll.asked].to(device) for name in self.groups}
        self.predictors = poll.predictors.to(device)
        self.asked_predictors = poll.predictors[poll.asked].to(device)
        self.answers, self.yes = poll.answers.to(device), poll.yes.to(device)
        self.census, self.state = poll.census.to(device), poll.columns["state"].to(device)
        self.n_states = poll.levels["state"]
        self.state_census = torch.zeros(self.n_states, dtype=torch.float64, device=device).index_add(0, self.state, self.census)
        self.sizes = {"intercept": 1, "beta": poll.predictors.shape[1], "log_scale": len(self.groups)} | {name: poll.levels[name] for name in self.groups}
        self.dim = sum(self.sizes.values())
        zero, one = torch.zeros((), dtype=torch.float64, device=device), torch.ones((), dtype=torch.float64, device=device)
        self.intercept_prior = dist.Normal(zero, 1.5 * one, validate_args=False)  # a divergent trajectory may be NaN; it is rejected later
        self.beta_prior = dist.Normal(zero, one, validate_args=False)
        self.scale_prior = dist.HalfNormal(one, validate_args=False)
        self.unit = dist.Normal(zero, one, validate_args=False)

    def unpack(self, q: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.sizes, q.split(list(self.sizes.values()), dim=-1), strict=False))

    def linear(self, p: dict[str, Tensor], index: dict[str, Tensor], predictors: Tensor) -> Tensor:
        scales = p["log_scale"].exp()
        eta = p["intercept"] + p["beta"] @ predictors.T
        for k, name in enumerate(self.groups):
            effect = scales[:, k : k + 1] * p[name]
            eta = eta + effect[:, index[name]]
        return eta

    def log_prob(self, q: Tensor) -> Tensor:
        p = self.unpack(q)
        total = self.intercept_prior.log_prob(p["intercept"]).sum(dim=-1)
        total = total + self.beta_prior.log_prob(p["beta"]).sum(dim=-1)
        total = total + (self.scale_prior.log_prob(p["log_scale"].exp()) + p["log_scale"]).sum(dim=-1)
        for name in self.groups:
            total = total + self.unit.log_prob(p[name]).sum(dim=-1)
        eta = self.linear(p, self.asked_index, self.asked_predictors)
        return total + dist.Binomial(self.answers, logits=eta, validate_args=False).log_prob(self.yes).sum(dim=-1)

    def potential_and_grad(self, q: Tensor) -> tuple[Tensor, Tensor]:
        q = q.detach().requires_grad_(True)
        potential = -self.log_prob(q)
        (grad,) = torch.autograd.grad(potential.sum(), q)
        return potential.detach(), grad

    def functional_potential_and_grad(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The same without the tape of autograd, so that one compiled function can hold it."""

        def total(q: Tensor) -> tuple[Tensor, Tensor]:
            potential = -self.log_prob(q)
            return potential.sum(), potential

        grad, (_, potential) = torch.func.grad_and_value(total, has_aux=True)(q)
        return potential, grad

    @torch.no_grad()
    def opinions(self, q: Tensor) -> Tensor:
        """The share of yes in every state, for every chain: cells weighted with the census."""
        eta = self.linear(self.unpack(q), self.index, self.predictors)
        weighted = torch.sigmoid(eta) * self.census
        states = torch.zeros((len(q), self.n_states), dtype=q.dtype, device=q.device).index_add_(1, self.state, weighted)
        return states / self.state_census


class DualAveraging:
    """Nesterov's dual averaging of the log of the step size, towards a rate of acceptance."""

    def __init__(self, start: float, target: float = 0.8) -> None:
        self.target, self.mu = target, math.log(10 * start)
        self.log_step, self.log_average, self.h, self.count = math.log(start), 0.0, 0.0, 0

    def update(self, accept: float) -> None:
        self.count += 1
        rate = 1 / (self.count + 10)
        self.h = (1 - rate) * self.h + rate * (self.target - accept)
        self.log_step = self.mu - math.sqrt(self.count) / 0.05 * self.h
        decay = self.count**-0.75
        self.log_average = decay * self.log_step + (1 - decay) * self.log_average


class Welford:
    """Running mean and variance over draws of all chains."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = 0
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.m2 = torch.zeros(shape, dtype=torch.float64, device=device)

    def add(self, x: Tensor) -> None:
        self.count += 1
        delta = x - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (x - self.mean)

    def variance(self) -> Tensor:
        return self.m2 / max(self.count - 1, 1)


def split_rhat(mean: Tensor, variance: Tensor, draws: int) -> Tensor:
    """Gelman and Rubin's: chains by quantities."""
    within = variance.mean(dim=0)
    between = draws * mean.var(dim=0)
    return torch.sqrt(((draws - 1) / draws * within + between / draws) / within)


def poll_strata(s: Setup, *, fused_chains: bool = False, compiled: bool = False) -> Step:
    torch.manual_seed(8)
    poll = make_poll(s.size(51, 5), s.size(6, 3), respondents=s.size(60000, 500))
    model = Regression(poll, s.device)
    chains, max_leapfrogs = s.size(64, 4), s.size(16, 4)
    warmup, mass_every, report_every = 400, 50, 10

    q = 0.1 * torch.randn((chains, model.dim), dtype=torch.float64, device=s.device)
    potential, grad = model.potential_and_grad(q)
    inverse_mass = torch.ones(model.dim, dtype=torch.float64, device=s.device)
    averaging = DualAveraging(start=0.005)
    window = Welford((chains, model.dim), s.device)
    opinion = Welford((chains, model.n_states), s.device)
    rng = np.random.default_rng(5)
    iteration, divergences = 0, 0

    # what changes from call to call comes in as tensors, and is returned, not written in place
    def leapfrog(q: Tensor, momentum: Tensor, grad: Tensor, size: Tensor, inverse_mass: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        momentum = momentum - 0.5 * size * grad
        q = q + size * inverse_mass * momentum
        potential, grad = model.functional_potential_and_grad(q)
        return q, momentum - 0.5 * size * grad, potential, grad

    def start(noise: Tensor, potential: Tensor, inverse_mass: Tensor) -> tuple[Tensor, Tensor]:
        momentum = noise / inverse_mass.sqrt()
        return momentum, potential + 0.5 * (momentum**2 * inverse_mass).sum(dim=-1)

    def finish(
        old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], momentum: Tensor, start_energy: Tensor, uniform: Tensor, inverse_mass: Tensor
    ) -> tuple[Tensor, ...]:
        """Acceptance; the new q, potential and gradient, the states' opinions, and numbers for the report."""
        (q, potential, grad), (q_new, potential_new, grad_new) = old, new
        change = potential_new + 0.5 * (momentum**2 * inverse_mass).sum(dim=-1) - start_energy
        change = torch.where(torch.isnan(change), torch.full_like(change, math.inf), change)
        accept_prob = torch.exp(-change).clamp(max=1.0)
        accept = uniform < accept_prob
        q = torch.where(accept[:, None], q_new, q)
        grad = torch.where(accept[:, None], grad_new, grad)
        potential = torch.where(accept, potential_new, potential)
        return q, potential, grad, model.opinions(q), (change > 1000).sum(), accept_prob.mean(), potential.mean()

    def welford(x: Tensor, mean: Tensor, m2: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        delta = x - mean
        mean = mean + delta / count
        return mean, m2 + delta * (x - mean)

    whole = fused_chains or compiled
    if whole:
        leapfrog, start, finish, welford = (s.compile(function, dynamic=False) for function in (leapfrog, start, finish, welford))

    def as_tensor(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=s.device)

    def add(running: Welford, x: Tensor) -> None:
        if not whole:
            return running.add(x)
        running.count += 1
        running.mean, running.m2 = welford(x, running.mean, running.m2, as_tensor(running.count))

    history: list[dict[str, float]] = []

    def step() -> dict[str, float]:
        nonlocal q, potential, grad, inverse_mass, averaging, window, opinion, iteration, divergences
        iteration += 1
        size = math.exp(averaging.log_step if iteration <= warmup else averaging.log_average)
        if whole:
            momentum, start_energy = start(torch.randn_like(q), potential, inverse_mass)
            new, width = (q, potential, grad), as_tensor(size)
            for _ in range(int(rng.integers(max_leapfrogs // 2, max_leapfrogs + 1))):
                q_new, momentum, potential_new, grad_new = leapfrog(new[0], momentum, new[2], width, inverse_mass)
                new = q_new, potential_new, grad_new
            uniform = torch.rand_like(start_energy)
            q, potential, grad, states, diverged, mean_rate, mean_potential = finish((q, potential, grad), new, momentum, start_energy, uniform, inverse_mass)
            divergences += int(diverged)
            rate = mean_rate.item()
        else:
            momentum = torch.randn_like(q) / inverse_mass.sqrt()
            start_energy = potential + 0.5 * (momentum**2 * inverse_mass).sum(dim=-1)

            q_new, potential_new, grad_new = q, potential, grad
            for _ in range(int(rng.integers(max_leapfrogs // 2, max_leapfrogs + 1))):
                momentum = momentum - 0.5 * size * grad_new
                q_new = q_new + size * inverse_mass * momentum
                potential_new, grad_new = model.potential_and_grad(q_new)
                momentum = momentum - 0.5 * size * grad_new

            change = potential_new + 0.5 * (momentum**2 * inverse_mass).sum(dim=-1) - start_energy
            change = torch.where(torch.isnan(change), torch.full_like(change, math.inf), change)
            accept_prob = torch.exp(-change).clamp(max=1.0)
            accept = torch.rand_like(accept_prob) < accept_prob
            q = torch.where(accept[:, None], q_new, q)
            grad = torch.where(accept[:, None], grad_new, grad)
            potential = torch.where(accept, potential_new, potential)
            divergences += int((change > 1000).sum())
            rate = accept_prob.mean().item()

        if iteration <= warmup:
            averaging.update(rate)
            add(window, q)
            if iteration % mass_every == 0:
                pooled = window.variance().mean(dim=0) + window.mean.var(dim=0)
                inverse_mass = (window.count * pooled + 5e-3) / (window.count + 5)
                averaging = DualAveraging(start=math.exp(averaging.log_average))
                window = Welford((chains, model.dim), s.device)
        if iteration == warmup:
            opinion = Welford((chains, model.n_states), s.device)
        add(opinion, states if whole else model.opinions(q))
        report = {"accept": rate, "step_size": size, "potential": (mean_potential if whole else potential.mean()).item(), "divergences": float(divergences)}
        if iteration % report_every == 0:
            report["rhat"] = split_rhat(opinion.mean, opinion.variance(), opinion.count).max().item()
            history.append(report)
        return report

    return step


PROGRAM = advised(
    "poll_strata",
    "Hamiltonian Monte Carlo of 64 chains in FP64 on a multilevel regression, with adaptation and R-hat.",
    poll_strata,
    {"unfused-elementwise": {"fused_chains": True}, "launch-gap": {"compiled": True}},
)
