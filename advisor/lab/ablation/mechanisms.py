"""The mechanisms that can be disabled: effect, how to disable each, and the programs that it was fitted to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.intervals import EMPTY
from advisor.knowledge.structs import replace
from advisor.lab.ablation.switch import Number, Result, Switch
from advisor.views.replay.edits import combine

NEVER = re.compile(r"(?!)")
"""Matches nothing."""


@dataclass(frozen=True)
class Mechanism:
    """A recogniser or a fitted constant.

    until: date from which nine tenths of its lines, or a constant, have had their present form. Programs recorded later were unseen (see
    `traces.unseen`).

    what: its effect, in a line.

    written_on: the programs that it was fitted to by its own comment, "" if it names none. programs: their number, 0 if nothing was fitted."""

    name: str
    until: str
    what: str
    switches: tuple[Switch, ...]
    written_on: str = ""
    programs: int = 0


def _empty(*names: str) -> Any:
    """Returns a function that empties the arrays of these names in a view."""
    return lambda made, *_, **__: replace(made, **{name: getattr(made, name)[:0] for name in names})


def _replaced_fields(**values: Any) -> Any:
    """Returns a function that replaces these values in a view."""
    return lambda made, *_, **__: replace(made, **values)


def _always(value: Any) -> Any:
    return lambda *_, **__: value


def _empty_mask(made: np.ndarray, *_: Any, **__: Any) -> np.ndarray:
    """A mask of the same length that selects nothing."""
    return np.zeros_like(made)


def _empty_array(made: np.ndarray, *_: Any, **__: Any) -> np.ndarray:
    return made[:0]


def _no_loop(made: Any) -> Any:
    return replace(made, ops=made.ops[:0], spans=EMPTY, waits=made.waits[:0], tensors=0)


def _no_compiled_loop(made: Any, *_: Any, **__: Any) -> Any:
    nowhere = {name: np.full_like(getattr(made, name), -1) for name in ("of_op", "of_call")}
    nothing = {name: np.zeros_like(getattr(made, name)) for name in ("own", "copies")}
    return replace(made, number=made.number[:0], **nowhere, **nothing, by_value=False, idle_us=0.0)


def _no_gradient(made: Any, *_: Any, **__: Any) -> Any:
    rows = ("gradients", "table", "read", "lookups", "fills", "updates", "share")
    nowhere = {name: np.full_like(getattr(made, name), -1) for name in ("within", "reading")}
    return replace(made, **{name: getattr(made, name)[:0] for name in rows}, **nowhere, shapes=())


MECHANISMS = (
    # What a compiler fuses
    Mechanism(
        "fused-chains",
        "2026-11-25T22:08",
        "pointwise work between products becomes one kernel",
        (Result("advisor.views.patterns.fusion", "Fusion.build", _empty("stretches")),),
    ),
    Mechanism(
        "random-rate",
        "2026-11-21T17:06",
        "dropout's random numbers bound a fused kernel",
        (Number("advisor.views.patterns.fusion", "RANDOM_PER_S", math.inf, "Stretch.fused_us"),),
    ),
    Mechanism(
        "narrow-softmax",
        "2026-11-22T23:11",
        "a softmax of few rows keeps its time when it is fused",
        (Number("advisor.views.patterns.fusion", "NARROW_US", math.inf, "Fusion.build"),),
    ),
    Mechanism(
        "repeated-operands",
        "2026-11-21T17:06",
        "every second operand of a size that was read is the same tensor",
        (Number("advisor.views.patterns.fusion", "AGAIN", 1.0, "Fusion.build"),),
    ),
    Mechanism(
        "long-rows",
        "2026-11-21T17:06",
        "rows longer than 16 kB are read again by a fused softmax",
        (Number("advisor.views.patterns.fusion", "ROW_BYTES", math.inf, "Fusion.build"),),
    ),
    # The compiled step
    Mechanism(
        "padded-products",
        "2026-11-23T00:00",
        "a compiler pads products off alignment, at half their time",
        (Number("advisor.views.patterns.compiled_step", "UNALIGNED", NEVER, "CompiledStep.build"),),
    ),
    Mechanism(
        "compiled-part-cost",
        "2026-11-22T14:33",
        "each compiled part and kernel of a training step costs the host",
        (
            Number("advisor.views.patterns.compiled_step", "COMPILED_PART_US", 0.0, "CompiledStep.build"),
            Number("advisor.views.patterns.compiled_step", "COMPILED_KERNEL_US", 0.0, "CompiledStep.build"),
        ),
        written_on="ten programs by chain, GPT-2 and ViT",
        programs=12,
    ),
    Mechanism(
        "compiled-dispatch",
        "2026-11-30T12:50",
        "launches that a compiler leaves of inference cost the host less at the high end",
        (Number("advisor.views.patterns.compiled_step", "COMPILED_DISPATCH", 1.0, "CompiledStep.build"),),
        written_on="21 small programs, in inference",
        programs=21,
    ),
    Mechanism(
        "recurrent-cells",
        "2026-11-27T02:39",
        "a Python loop over a recurrent cell becomes one library call",
        (Result("advisor.views.patterns.recurrent_cells", "RecurrentLoop.build", _replaced_fields(cells=0.0, edit=combine())),),
        written_on="two loops",
        programs=2,
    ),
    Mechanism(
        "recurrent-heads",
        "2026-11-27T02:39",
        "heads of a recurrent cell wait until its loop is over",
        (Number("advisor.views.patterns.recurrent_cells", "HEAD", 0.0, "RecurrentLoop.build"),),
        written_on="one head beside one cell",
        programs=1,
    ),
    Mechanism(
        "gradient-accumulation",
        "2026-11-27T00:00",
        "micro-batches of a step run as one batch",
        (
            Result(
                "advisor.views.patterns.gradient_accumulation",
                "MicroBatches.build",
                lambda made, *_, **__: replace(made, times=1.0, kept=made.kept[:0], together_us=made.together_us[:0], gone=made.gone[:0], waits=made.waits[:0]),
            ),
        ),
    ),
    # Attention and norms
    Mechanism(
        "decomposed-norms",
        "2026-11-25T03:27",
        "norms and softmaxes written out op by op",
        (Result("advisor.views.patterns.norms", "WrittenOut.build", _empty("chains")),),
    ),
    Mechanism(
        "unfused-attention",
        "2026-11-29T21:30",
        "attention written out as products and a softmax",
        (Result("advisor.views.patterns.attention", "Attentions.build", _empty("found")),),
    ),
    Mechanism(
        "repeated-heads",
        "2026-11-25T18:24",
        "keys and values repeated for query heads that share them",
        (Result("advisor.views.patterns.shared_heads", "RepeatedHeads.build", _empty("found")),),
    ),
    Mechanism(
        "host-inside-patterns",
        "2026-11-22T19:01",
        "host time between the ops of a fused pattern goes with it",
        (Result("advisor.views.patterns.attention", "host_between", _always(EMPTY)),),
    ),
    Mechanism(
        "lora", "2026-11-25T18:24", "adapters beside a layer join its weight", (Result("advisor.views.patterns.lora", "Adapters.build", _empty("found")),)
    ),
    # Precision and layout
    Mechanism(
        "casts",
        "2026-11-23T08:31",
        "conversions between floating types, and what each is for",
        (Result("advisor.views.patterns.casts", "Casts.build", _empty("all")),),
    ),
    Mechanism(
        "fp32-activations",
        "2026-11-25T18:24",
        "activations that autocast leaves in FP32",
        (Result("advisor.views.patterns.casts", "WideActivations.build", _empty("at", "dur_us", "share")),),
    ),
    Mechanism(
        "handed-on",
        "2026-11-25T18:04",
        "models in 16 bits spare half of what FP32 activations cost",
        (Number("dtype-casts", "HANDED_ON", 1.0),),
        written_on="seven programs of the ledger",
        programs=7,
    ),
    Mechanism(
        "fp32-matmuls",
        "2026-11-24T23:10",
        "products in FP32 or TF32",
        (Result("advisor.views.patterns.precision", "WideProducts.build", lambda made, *_, **__: made.of_ops(())),),
    ),
    Mechanism(
        "fp64-kernels",
        "2026-11-28T15:05",
        "kernels that compute in FP64",
        (
            Result(
                "advisor.views.patterns.precision",
                "DoubleWork.build",
                lambda made, *_, **__: replace(made, at=made.at[:0], likely=combine(), best=combine()),
            ),
        ),
    ),
    Mechanism(
        "transpose-pairs",
        "2026-11-22T22:59",
        "a transpose and its way back around work that needs neither",
        (Result("advisor.views.patterns.transposes", "RoundTrips.build", _empty("there", "back", "left", "mixed", "around_products")),),
    ),
    Mechanism(
        "layout-copies",
        "2026-11-26T05:08",
        "conversions between NCHW and NHWC",
        (Result("advisor.views.patterns.memory_format", "LayoutCopies.build", _empty("at", "of_sequences")),),
    ),
    Mechanism(
        "norms-in-tf32",
        "2026-11-23T14:37",
        "channels_last gains in TF32 where cuDNN's norms take a tenth",
        (Number("advisor.views.patterns.memory_format", "OF_LIBRARY", math.inf, "ChannelsLast.build"),),
        written_on="four steps bound by the GPU, seven by the host",
        programs=11,
    ),
    Mechanism(
        "layout-by-compiler",
        "2026-11-23T08:03",
        "Inductor keeps images in channels_last",
        (Result("advisor.views.patterns.memory_format", "_by_compiler", _always(False)),),
    ),
    Mechanism(
        "dense-gradients",
        "2026-11-28T15:05",
        "dense gradients of embedding tables",
        (Result("advisor.views.patterns.embedding_tables", "DenseGradients.build", _no_gradient),),
    ),
    # The optimizer and loops over parameters
    Mechanism(
        "optimizer-step",
        "2026-11-28T15:02",
        "an optimizer that updates parameters one by one",
        (
            Result(
                "advisor.views.patterns.optimizer",
                "OptimizerStep.build",
                lambda made, *_, **__: replace(made, kind="none", ops=made.ops[:0], spans=EMPTY, parameters=0),
            ),
        ),
    ),
    Mechanism(
        "parameter-loops",
        "2026-11-22T23:02",
        "other loops over parameters",
        (
            Result(
                "advisor.views.patterns.parameter_loops",
                "ParameterLoops.build",
                lambda made, *_, **__: replace(made, zeroing=_no_loop(made.zeroing), updating=_no_loop(made.updating)),
            ),
        ),
    ),
    # The host
    Mechanism(
        "judging-ops",
        "2026-11-22T23:09",
        "reductions and comparisons go with the read that they are for",
        (Result("advisor.views.patterns.device_syncs", "_judging", _empty_mask),),
    ),
    Mechanism(
        "passes-between-reads",
        "2026-11-27T12:53",
        "a graph holds one pass of a loop that reads after each",
        (Result("advisor.views.patterns.graph_capture", "_in_passes", _always(False)),),
        written_on="17 programs below its share",
        programs=17,
    ),
    Mechanism(
        "capturable-parts",
        "2026-11-26T09:36",
        "parts alike in all steps are captured by themselves",
        (Result("advisor.views.patterns.graph_capture", "_parts", _always(())),),
    ),
    Mechanism(
        "decided-branches",
        "2026-11-26T19:43",
        "steps that differ by a condition or a mask alone can be captured",
        (Result("advisor.views.patterns.graph_capture", "_decided", _always(False)),),
    ),
    Mechanism(
        "resized-steps",
        "2026-11-27T13:21",
        "steps of other sizes are told from steps that differ",
        (Result("advisor.views.patterns.graph_capture", "_resized", _always(False)),),
    ),
    Mechanism(
        "masks-of-few",
        "2026-11-26T20:04",
        "no graph works on all rows where products take more than a tenth",
        (Number("graph-candidate", "FEW_PRODUCTS", math.inf),),
        written_on="a set of twelve ordinary programs",
    ),
    Mechanism(
        "staged-copies",
        "2026-11-22T13:24",
        "arrays that JAX stages on the host",
        (Result("advisor.views.patterns.transfers", "StagedCopies.build", _replaced_fields(spans=EMPTY, us=0.0, same=False)),),
    ),
    Mechanism(
        "compiled-loops",
        "2026-11-28T17:26",
        "turns of a loop that XLA runs",
        (Result("advisor.views.patterns.compiled_loops", "CompiledLoops.build", _no_compiled_loop),),
    ),
    # Idioms
    Mechanism(
        "idiom-cell",
        "2026-11-27T00:30",
        "a loop over a recurrent cell, by its ops",
        (Result("advisor.views.trace.spellings", "Spellings.build", _replaced_fields(cell="", cells=0.0)),),
    ),
    Mechanism(
        "idiom-picked",
        "2026-11-27T00:30",
        "a log-softmax and a pick instead of a cross entropy",
        (Result("advisor.views.trace.spellings", "Spellings.build", _replaced_fields(picked=0.0)),),
    ),
    Mechanism(
        "idiom-grows",
        "2026-11-27T00:30",
        "a cache that grows by concatenation",
        (Result("advisor.views.trace.spellings", "Spellings.build", _replaced_fields(grows=None)),),
    ),
    # Start-up
    Mechanism(
        "one-time-work",
        "2026-11-28T15:05",
        "loading, tuning and first launches are start-up, not the step",
        (Result("advisor.views.trace.startup", "StartUp.build", lambda made, *_, **__: replace(made, once=EMPTY, calls=(), ends_us=made.ends_us[:0])),),
    ),
    Mechanism(
        "first-pass",
        "2026-11-23T14:56",
        "a recording of a program's first pass alone",
        (Result("advisor.views.trace.first_pass", "FirstPass.build", _replaced_fields(only=False, taken=0, brief=False)),),
    ),
    Mechanism(
        "attention-plans",
        "2026-11-23T20:42",
        "cuDNN plans attention inside a step",
        (
            Result(
                "advisor.views.trace.compilation",
                "AttentionPlans.build",
                lambda made, *_, **__: replace(made, spans=EMPTY, calls=made.calls[:0], steps=0, sizes=0),
            ),
        ),
    ),
    Mechanism(
        "compilation",
        "2026-11-21T20:09",
        "compilation inside the window",
        (Result("advisor.views.trace.compilation", "Compilation.build", _replaced_fields(spans=EMPTY, compilers=EMPTY)),),
    ),
    # How sure a saving is
    Mechanism(
        "hidden-host",
        "2026-11-28T15:02",
        "a host that does not bound the step is as fast as it may be",
        (Number("advisor.views.replay.replay", "SEEN", -1.0, "Replay.hidden"), Number("advisor.views.replay.replay", "HIDDEN", -2.0, "Replay.hidden")),
        written_on="35 fixes that it moves",
        programs=35,
    ),
    Mechanism(
        "unsure-is-low",
        "2026-11-25T00:37",
        "a fix that may gain nothing is low below 15 % of the step",
        (Number("advisor.engine.uncertainty", "UNSURE", 0.0, "doubted"),),
        written_on="the ledger's findings whose interval begins near 0",
    ),
)
