"""Common questions about a profile, answered from the report."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from advisor.knowledge.idle import BY_NAME
from advisor.knowledge.op_tokens.families import PRODUCTS, of_engine, tensor_core
from advisor.knowledge.shares import HARDLY_ANY, LITTLE, MOST, NEARLY_ALL, WELL_USED
from advisor.report.finding import BytesSaved
from advisor.report.kernels import KernelRow
from advisor.report.model import Answer, Report
from advisor.report.numbers import counted, duration, percent, three
from advisor.report.recording import DeviceTime, matrix_units
from advisor.report.roofline import standing

BUSY, EXPOSED, IN_THE_WAY = NEARLY_ALL, LITTLE, HARDLY_ANY
"""A GPU that works nine tenths of the step leaves little to gain by feeding it better; exposed communication of a tenth is not work;
a twentieth of the step stands out from the noise of an unprofiled run."""

NEAR_ROOF, KNOWN, COMPILED = WELL_USED, MOST, LITTLE
"""Large GEMMs reach 70 to 90 % of datasheet rates; a mean represents the rest if half of the time is known; a generated
kernel in ten is a compiled model, in 768 a compiled helper."""

_SHORT = ("fp16", "bf16", "fp8", "fp4", "int8")


def checklist(report: Report) -> tuple[Answer, ...]:
    """Every question, in a fixed order. Nothing is asked of a recording that is no trace."""
    if report.kind != "trace":
        return ()
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    alone = _without_recording(report, time) if time else None
    of_time = [ask(report, alone) if alone and report.devices else _unrecorded(*what) for ask, what in _OF_TIME]
    of_report = [ask(report) for ask in (_memory_bound, _tensor_cores, _mixed, _compiled, _fused, _batch, _used, _wins)]
    found = {answer.id: answer for answer in (*of_time, *of_report)}
    return tuple(found[name] for name in ORDER)


ORDER = (
    "gpu-busy", "gaps", "data-loading", "memory-bound", "tensor-cores", "mixed-precision", "compiled", "fused", "synchronisation",
    "copies", "batch-size", "allocation", "utilisation", "communication", "easy-wins",
)  # fmt: skip


def _without_recording(report: Report, time: DeviceTime) -> DeviceTime:
    """The device's window as it is when nobody records: every figure of a report is of that."""
    added = report.added_us(time)
    idle = msgspec.structs.replace(time.idle, profiler=time.idle.profiler - added)
    return msgspec.structs.replace(time, window_us=time.window_us - added, idle_us=time.idle_us - added, idle=idle)


def _unrecorded(name: str, question: str, why: str = "The trace records no GPU work.", link: str = "#health") -> Answer:
    return Answer(id=name, question=question, answer="not recorded", detail=why, link=link)


def _told(name: str, question: str, yes: bool, detail: str, link: str, figure: float | None, good: bool) -> Answer:
    return Answer(id=name, question=question, answer="yes" if yes else "no", detail=detail, link=link, figure=figure, good=good)


def _open(name: str, question: str, detail: str, link: str, figure: float) -> Answer:
    """A no that is neither good nor bad news: the evidence does not settle it."""
    return Answer(id=name, question=question, answer="no", detail=detail, link=link, figure=figure)


def _heard(report: Report, *rules: str) -> str:
    """`found`, `clear` or the reason why none of these rules could look."""
    if any(f.rule in rules and f.severity != "info" and f.status == "found" for f in report.findings):
        return "found"
    if any(c.rule in rules for c in report.clear) or any(f.rule in rules for f in report.findings):
        return "clear"
    return next((s.why for s in report.skipped if s.rule in rules), "no rule looked")


def _gains(report: Report, *rules: str) -> float:
    """The gain of these rules' findings as a share of the step, without double counting."""
    step = report.headline.step_us or 0.0
    gained = sum(f.saving.expected for f in report.findings if f.rule in rules and f.status == "found" and not f.folded_into)
    return min(gained / step, 1.0) if step else 0.0


def _cost(report: Report, *rules: str) -> str:
    """The cost of these rules' findings, as the end of a sentence; if they were folded, others' fixes gain it."""
    gain = _gains(report, *rules)
    return f"cost {percent(gain)} of the step" if gain > 0 else "are covered by the fix of another finding"


def _busy(report: Report, time: DeviceTime) -> Answer:
    question = "Is the GPU busy?"
    busy, exposed = (_share(us, time) for us in (time.window_us - time.idle_us, time.exposed_comm_us))
    if exposed >= EXPOSED:
        detail = f"The GPU is active {percent(busy)} of the time, but {percent(exposed)} is exposed communication."
        return _told("gpu-busy", question, False, detail, "#time", _share(time.compute_us, time), False)
    return _told("gpu-busy", question, busy >= BUSY, f"{percent(busy)} of the time.", "#time", busy, busy >= BUSY)


def _gaps(report: Report, time: DeviceTime) -> Answer:
    idle = _share(time.idle_us, time)
    causes = {name: float(getattr(time.idle, name)) for name in time.idle.__struct_fields__}
    cause = max(causes, key=causes.__getitem__)
    detail = f"It idles for {percent(idle)} of the time" + (f", {percent(_share(causes[cause], time))} for {BY_NAME[cause].title}." if idle >= 0.01 else ".")
    return _told("gaps", "Are there gaps between kernels?", idle >= 1 - BUSY, detail, "#time", idle, idle < 1 - BUSY)


def _loading(report: Report, time: DeviceTime) -> Answer:
    waits = _share(time.idle.data_loading, time)
    held, most = waits >= IN_THE_WAY or _heard(report, "data-loading") == "found", report.headline.bottleneck == "data-bound"
    detail = f"The GPU waits for batches {percent(waits)} of the time" + (": more time goes elsewhere." if held and not most else ".")
    return _told("data-loading", "Is data loading the bottleneck?", most, detail, "#time", waits, not held)


def _sync(report: Report, time: DeviceTime) -> Answer:
    name, question = "synchronisation", "Is there unneeded synchronisation?"
    heard, share = _heard(report, "sync-stall", "amp-scaler-sync"), _share(time.idle.sync, time)
    if heard not in ("found", "clear"):
        return _unrecorded(name, question, f"{heard[:1].upper()}{heard[1:]}.", "#skipped")
    detail = f"The GPU idles {percent(share)} of the time because the host waits for it."
    if heard == "found":
        detail = f"Host waits that can be removed {_cost(report, 'sync-stall', 'amp-scaler-sync')}."
    elif share >= EXPOSED:
        return _open(name, question, f"{detail[:-1]}; none that can be removed was found.", "#time", share)
    return _told(name, question, heard == "found", detail, "#findings", share, heard != "found")


def _copies(report: Report, time: DeviceTime) -> Answer:
    share = _share(time.exposed_copy_us, time)
    kinds = (("Copies that can be removed or sped up", "memcpy"), ("Dtype casts that can be removed", "dtype-casts"))
    found = [(what, rule) for what, rule in kinds if _heard(report, rule) == "found"]
    slow = bool(found) or share >= EXPOSED
    detail = " ".join([f"Exposed copies take {percent(share)} of the time.", *(f"{what} {_cost(report, rule)}." for what, rule in found)])
    return _told("copies", "Are there unneeded or slow copies?", slow, detail, "#findings" if found else "#time", share, not slow)


def _allocation(report: Report, time: DeviceTime) -> Answer:
    share, heard = _share(time.idle.allocator, time), _heard(report, "allocator")
    inside = heard == "found" or share >= IN_THE_WAY
    detail = f"The GPU idles for {percent(share)} of the time while device memory is allocated or freed."
    return _told("allocation", "Is memory allocated inside the step?", inside, detail, "#time", share, not inside)


def _communication(report: Report, time: DeviceTime) -> Answer:
    share = _share(time.exposed_comm_us, time)
    bad = share >= EXPOSED or _heard(report, "exposed-communication", "missed-overlap") == "found"
    detail = f"Exposed communication takes {percent(share)} of the time." if share else "It is fully overlapped, or there is none."
    return _told("communication", "Is communication exposed?", bad, detail, "#time", share, not bad)


_OF_TIME: tuple[tuple[Callable[[Report, DeviceTime], Answer], tuple[str, str]], ...] = (
    (_busy, ("gpu-busy", "Is the GPU busy?")),
    (_gaps, ("gaps", "Are there gaps between kernels?")),
    (_loading, ("data-loading", "Is data loading the bottleneck?")),
    (_sync, ("synchronisation", "Is there unneeded synchronisation?")),
    (_copies, ("copies", "Are there unneeded or slow copies?")),
    (_allocation, ("allocation", "Is memory allocated inside the step?")),
    (_communication, ("communication", "Is communication exposed?")),
)


_BOUND_BY = {"memory-bound": True, "compute-bound": False}
"""Headlines that say by themselves whether kernels are memory-bound."""


def _memory_bound(report: Report) -> Answer:
    name, question = "memory-bound", "Are its kernels memory-bound?"
    known = standing(report)
    if known is not None and known.known >= KNOWN:
        of = "kernel time" if known.known > 0.995 else "the kernel time with known cost"
        detail = f"By arithmetic intensity {percent(known.memory)} of {of} is memory-bound, {percent(1 - known.memory)} compute-bound."
        # The headline knows by their kinds what kernels do whose work is not known.
        bound = _BOUND_BY.get(report.headline.bottleneck, known.memory >= 0.5)
        if bound != (known.memory >= 0.5):
            detail = f"{detail} By kernel type, most of all kernel time is {'memory-bound' if bound else 'compute-bound'}."
        return Answer(id=name, question=question, answer="yes" if bound else "no", detail=detail, link="#roofline", figure=known.memory)
    return _unrecorded(name, question, _why_unknown(report), "#roofline")


def _why_unknown(report: Report) -> str:
    if report.source.format == "jax":
        return "JAX profiles do not hold the shapes of each call."
    if not report.source.recorded.shapes:
        how = " (record_shapes=True)" * (report.source.format == "kineto")
        return f"Shapes were not recorded{how}."
    return "The cost of most kernels or the GPU's peak rates are unknown."


def _dense(report: Report) -> list[KernelRow]:
    return [row for row in report.kernels if row.family in PRODUCTS]


_LOWER = ", and lower precision would speed up some of it"
"""The finding of the rule precision, next to each of its two answers."""


def _tensor_cores(report: Report) -> Answer:
    name, question = "tensor-cores", f"Are {matrix_units(report.devices)} used?"
    told = [(row.total_us, on) for row in _dense(report) if (on := tensor_core(row.name, row.precision)) is not None]
    whole, known = sum(row.total_us for row in _dense(report)), sum(us for us, _ in told)
    if not whole:
        return _unrecorded(name, question, "No GEMM, convolution or attention ran.", "#kernels")
    if known < KNOWN * whole:
        return _unrecorded(name, question, "Kernel names do not show it.", "#kernels")
    share = sum(us for us, on in told if on) / known
    missed = _heard(report, "precision") == "found"
    detail = f"For {percent(share)} of the time of GEMMs, convolutions and attention{_LOWER * missed}."
    return _told(name, question, share >= 0.5, detail, "#kernels", share, share >= 0.5 and not missed)


def _mixed(report: Report) -> Answer:
    name, question = "mixed-precision", "Is it in mixed or low precision?"
    rows = [row for row in _dense(report) if row.precision]
    known, whole = sum(row.total_us for row in rows), sum(row.total_us for row in _dense(report))
    if not whole or known < KNOWN * whole:
        return _unrecorded(name, question, "The precision of most GEMMs is unknown." if whole else "No GEMM ran.", "#kernels")
    share = sum(row.total_us for row in rows if row.precision in _SHORT) / known
    missed = _heard(report, "precision") == "found"
    detail = f"{percent(share)} of GEMM time uses 16 bits or fewer{_LOWER * missed}."
    return _told(name, question, share >= 0.5, detail, "#kernels", share, share >= 0.5 and not missed)


def _compiled(report: Report) -> Answer:
    name, question = "compiled", "Is the model compiled?"
    calls = sum(row.calls for row in report.kernels)
    if not calls:
        return _unrecorded(name, question)
    share = sum(row.calls for row in report.kernels if row.family == "fused") / calls
    engine = sum(row.calls for row in report.kernels if of_engine(row.name)) / calls
    detail = f"{percent(engine)} of the kernels belong to TensorRT engines." if engine > share else f"{percent(share)} of the kernels are compiler-generated."
    share = max(share, engine)
    return Answer(id=name, question=question, answer="yes" if share >= COMPILED else "no", detail=detail, link="#kernels", figure=share)


def _fused(report: Report) -> Answer:
    name, question = "fused", "Are kernels fused?"
    rules = ("unfused-elementwise", "unfused-attention", "unfused-norm", "optimizer-foreach")
    heard, gain = _heard(report, *rules), _gains(report, *rules)
    if heard not in ("found", "clear"):
        return _unrecorded(name, question, f"{heard[:1].upper()}{heard[1:]}.", "#skipped")
    detail = f"Separate kernels that could be fused {_cost(report, *rules)}." if heard == "found" else "No chain worth fusing was found."
    return _told(name, question, heard == "clear", detail, "#findings", gain, heard == "clear")


def _batch(report: Report) -> Answer:
    name, question = "batch-size", "Is the batch large enough?"
    heard = _heard(report, "low-arithmetic-intensity", "small-grid")
    if heard not in ("found", "clear"):
        return _unrecorded(name, question, f"{heard[:1].upper()}{heard[1:]}.", "#skipped")
    if heard == "clear" and not _dense(report):
        return _unrecorded(name, question, f"No GEMM ran.{_throughput(report)}", "#kernels")
    waits = report.headline.bottleneck == "launch-bound" and _busy_share(report) < 0.5
    good = heard == "clear" and not waits
    if good and (busy := _busy_share(report)) < 0.5:
        detail = f"The GPU works {percent(busy)} of the step, so a larger batch may take little longer."
        return _open(name, question, f"{detail}{_throughput(report)}", "#time", busy)
    if waits:
        detail = "Kernels finish before the next launch, so a larger batch would take little longer."
    elif heard == "found":
        detail = "GEMMs have too few rows, or kernels too few blocks; see the findings."
    else:
        detail = "GEMMs with few rows and kernels with few blocks take little of the step."
    gain = _gains(report, "low-arithmetic-intensity", "small-grid")
    return _told(name, question, good, f"{detail}{_throughput(report)}", "#findings", gain, good)


def _busy_share(report: Report) -> float:
    """How much of the step, as it runs unrecorded, the busiest device works."""
    busy_us = max((time.window_us - time.idle_us for time in report.time or ()), default=0.0)
    whole_us = (report.headline.step_us or 0.0) * (report.window.steps if report.window else 1)
    return busy_us / whole_us if whole_us else 0.0


def _throughput(report: Report) -> str:
    """Latency and throughput next to each other, if the batch is known: a larger batch raises both."""
    samples, step = report.work.samples if report.work else 0.0, report.headline.step_us
    if not samples or not step:
        return ""
    return f" {counted(samples, 'sample')} per step ({report.work.samples_from}): {duration(step)} per step, {three(samples / step * 1e6)} samples/s."


def _used(report: Report) -> Answer:
    name, question = "utilisation", "Are SMs and memory bandwidth well used?"
    measured = ", ".join(f"{row.unit} {row.mean_pct:.0f} %" for row in report.utilization)
    known, rates = standing(report), report.rates
    if rates is None or known is None or known.known < KNOWN:
        if measured:
            highest = max(row.mean_pct for row in report.utilization) / 100
            return _told(name, question, False, f"Measured, of peak: {measured}.", "#time", highest, False)
        return _unrecorded(name, question, _why_unknown(report), "#roofline")
    narrow = _active_sms(report)
    reached = [
        f"{percent(rates.flops_busy)} of peak FLOP/s while busy ({percent(rates.flops_step)} over the step)"
        if rates.flops_busy is not None and rates.flops_step is not None
        else "",
        f"{percent(rates.bytes_busy)} of the bandwidth ({percent(rates.bytes_step)})" if rates.bytes_busy is not None and rates.bytes_step is not None else "",
    ]
    grids = [
        f"active warps {percent(rates.active_warps)} of the maximum" if rates.active_warps is not None else "",
        f"active SMs {percent(narrow)}" if narrow is not None else "",
    ]
    parts = (("Estimated from shapes", reached), ("By the grids", grids))
    sentences = [f"{what}: {', '.join(filter(None, each))}." for what, each in parts if any(each)]
    detail = " ".join([*sentences, *([f"Measured: {measured}."] if measured else [])])
    good = known.reached >= NEAR_ROOF
    return _told(name, question, good, detail, "#roofline", known.reached, good)


def _active_sms(report: Report) -> float | None:
    """Multiprocessors that have a block, over the time in which kernels run, as far as grids were recorded."""
    known = [(row.total_us, row.active_sms) for row in report.kernels if row.active_sms > 0]
    return sum(us * share for us, share in known) / sum(us for us, _ in known) if known else None


def _wins(report: Report) -> Answer:
    rules = list(dict.fromkeys(f.rule for f in report.findings if f.loud and not f.folded_into and not isinstance(f.saving, BytesSaved)))
    detail = f"{', '.join(rules[:4])}." if rules else "None that saves 5% of the step."
    if report.headline.judged == "no":
        return _unrecorded("easy-wins", "Easy wins left?", f"No rule could look: {report.headline.judged_why}.", "#health")
    after, step = report.headline.predicted_step_us, report.headline.step_us
    gain = max(1 - after.expected / step, 0.0) if after and step else 0.0
    if rules and gain:
        detail = f"{detail} All fixes together save {percent(gain)} of the step."
    if not rules and report.headline.judged == "partly":
        return _open(
            "easy-wins",
            "Easy wins left?",
            f"No easy win was found in the parts that could be judged. The reason: {report.headline.judged_why}.",
            "#findings",
            gain,
        )
    return _told("easy-wins", "Easy wins left?", bool(rules), detail, "#findings", gain, not rules)


def _share(us: float, time: DeviceTime) -> float:
    return us / time.window_us if time.window_us > 0 else 0.0
