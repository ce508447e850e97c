"""Activations of all layers are kept for the backward pass."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import size
from advisor.rules._memory import LEAST_BYTES, and_batch, places, saved, with_stacks
from advisor.rules.fixes import known_fix
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.edits import ForwardLayers, Layers, checkpointed
from advisor.views.memory.history import Bools
from advisor.views.memory.replay import MemoryReplay
from advisor.views.memory.scores import Scores

UNLIKE = 4
"""Layers dropped together at the low end if layers differ, since stacks do not show the program's blocks."""
URL = "https://docs.pytorch.org/docs/stable/checkpoint.html"


@rule("memory-activations", relies_on=("memory",))
def memory_activations(
    attribution: Attribution,
    replay: MemoryReplay,
    scores: Scores,
    forward: ForwardLayers,
    *,
    min_share: float = 0.2,
    least_bytes: int = LEAST_BYTES,
    worth_bytes: int = 2 << 30,
) -> Outcome:
    """Activations of all layers are kept for the backward pass

    What
    Each layer keeps the tensors that its backward pass needs. At the end of the forward pass, all of them are
    in memory. They grow with layers, batch and sequence length. Eager attention adds its N × N scores in every
    layer.

    Why
    Memory limits the batch size, and small batches leave the GPU idle. Checkpointing trades compute for memory:
    up to a third more compute per step. Fused attention saves memory and time.

    How to fix
    Checkpoint each layer; replace eager attention first if its scores are the larger part:

        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)

        out = F.scaled_dot_product_attention(q, k, v)

    When to ignore
    The program fits with the batch size that it needs.

    How it is measured
    The rule finds layers as the repeating part of the forward allocations. In the replay, each layer's
    activations are freed at its end and recomputed in the backward pass. It reports `min_share` ({min_share}) of the
    peak and `least_bytes` ({least_bytes}) or more. Below `worth_bytes` ({worth_bytes}), severity is `low`: checkpointing is not
    worth its price.

    | Estimate | Activations that remain |
    |---|---|
    | `low` | inputs of every second layer, and two layers |
    | `expected` | each layer's smallest tensor, and a single layer |
    | `high` | only the layers' inputs |

    References
    https://docs.pytorch.org/docs/stable/checkpoint.html
    """
    device = with_stacks(attribution)
    peak = device.peak_allocated
    kept = attribution.in_categories(Category.ACTIVATIONS)
    held = int(device.allocations.size[kept & device.at_peak].sum())
    if not attribution.backwards:
        return Clear(why="no backward pass in the window, so no activations are kept")
    found: list[Found] = []
    lives = replay.recorded
    without_scores = lives.without_rows(scores.rows)
    freed = peak - replay.allocated(without_scores)
    if scores.kept and freed >= max(min_share / 2 * peak, least_bytes, 1):
        found.append(_scores(attribution, scores, peak, freed))
        lives = without_scores
    layers = forward.found
    if layers is not None and layers.per_pass > 1:
        before = replay.allocated(lives)
        expected = before - replay.allocated(checkpointed(attribution, lives, layers))
        if expected >= max(min_share * peak, least_bytes, 1):
            low = before - replay.allocated(checkpointed(attribution, lives, layers, together=2 if layers.alike else UNLIKE))
            inner = np.zeros(len(device.allocations), bool)
            inner[layers.row[~layers.boundary]] = True
            high = before - replay.allocated(lives.without_rows(inner[lives.row]))
            found.append(_layers(attribution, layers, inner, held, (low, expected, high), worth_bytes))
    if found:
        return found
    return Clear(why=f"activations are {size(held)} of the peak of {size(peak)}, and checkpointing would free less than {min_share:.0%} of it")


def _layers(attribution: Attribution, layers: Layers, inner: Bools, held: int, freed: tuple[int, int, int], worth_bytes: int) -> Found:
    peak, expected = attribution.device.peak_allocated, freed[1]
    what = f"{layers.per_pass} layers keep" if layers.alike else "The forward pass keeps"
    return Found(
        summary=f"{what} {size(held)} of activations, {held / peak:.0%} of the peak of {size(peak)}. "
        f"Checkpointing {'each' if layers.alike else f'{layers.per_pass} parts'} frees {size(expected)} for a second forward pass of them.",
        confidence=0.8 if layers.alike else 0.7,
        at_most="high" if expected >= worth_bytes else "low",
        saving=saved(peak, *freed, "activations that can be computed again"),
        evidence=places(attribution, inner),
        fix=and_batch(
            Fix(
                title="Checkpoint each layer",
                steps=(
                    "Wrap the layers: each keeps its input and runs again in the backward pass.",
                    "It costs about a second forward pass of these layers, up to a third of a step's compute.",
                    "Checkpoint every second layer if half the saving is enough.",
                ),
                code=Code(
                    before="for layer in self.layers:\n    x = layer(x)",
                    after="for layer in self.layers:\n    x = checkpoint(layer, x, use_reentrant=False)",
                ),
                url=URL,
                holds_for=("training",),
                risk="Layers that draw random numbers or update statistics run twice; checkpoint restores the random state.",
            ),
            attribution,
            expected,
            of_batch=True,
        ),
    )


def _scores(attribution: Attribution, scores: Scores, peak: int, freed: int) -> Found:
    saving = saved(peak, 0.7 * freed, freed, 1.1 * freed, "the N × N scores of each layer")
    at_peak = int(attribution.device.allocations.size[scores.rows & attribution.device.at_peak].sum())
    return Found(
        title="Attention keeps its N × N scores in every layer",
        summary=f"Attention scores and tensors derived from them hold {size(at_peak)} of the peak of {size(peak)}. "
        f"scaled_dot_product_attention never forms them and frees {size(freed)}.",
        confidence=0.8,
        saving=saving,
        evidence=places(attribution, scores.rows),
        fix=and_batch(SDPA, attribution, freed, of_batch=True),
    )


SDPA = known_fix("memory", "attention")
