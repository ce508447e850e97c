"""Other ways to write the same: names, numbers, the order of the file, links that an exporter may omit."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from advisor.lab.stability.events import CALLS, ON_DEVICE, Event, Recorded, arguments
from advisor.lab.stability.times import STEP

OVERLOADS = {
    "Tensor": "add add_ sub sub_ mul mul_ div div_ eq ne gt lt ge le slice index split bitwise_and bitwise_or remainder divide_ result_type __and__",
    "Scalar": "pow_ fill_ masked_fill masked_fill_ rsub lerp_ _foreach_addcmul_ _foreach_lerp_ _foreach_norm",
    "Tensor_Scalar": "pow",
    "dim": "mean max min any all squeeze",
    "dim_IntList": "sum",
    "int": "softmax log_softmax transpose select unbind unflatten",
    "using_ints": "flatten",
    "memory_format": "empty",
    "dtype": "to",
    "self": "where",
    "src": "scatter_",
    "correction": "std var",
    "ScalarOpt_dim": "norm",
    "start_step": "arange",
    "List": "_foreach_add_ _foreach_mul_",
    "ScalarList": "_foreach_div_ _foreach_addcdiv_",
}
OVERLOAD_OF = {f"aten::{op}": f"aten::{op}.{overload}" for overload, ops in OVERLOADS.items() for op in ops.split()}
"""Names as `capture_overload_names=True` writes them, of ops that have overloads."""

_OF_A_STREAM = re.compile(r"(cuda|cu)(Launch|Memcpy|Memset|Stream|EventRecord|GraphLaunch|MallocAsync|FreeAsync)(?!\w*_)\w*$")
"""Calls that take a stream: others have a single form."""

_PARAMETERS = re.compile(r"^(?:void|static void)\s+(?P<name>.+?)\((?:[^()]|\([^()]*\))*\)(?: const)?$")


def overloads(trace: Recorded, rng: Random) -> Recorded | None:
    """The same ops, named with their overloads."""
    return _renamed(trace, lambda e: OVERLOAD_OF.get(e["name"]) if e.get("cat") in ("cpu_op", "Operator") else None)


def call_suffixes(trace: Recorded, rng: Random) -> Recorded | None:
    """The same runtime and driver calls, with the suffixes of their version and of a build with a stream per thread."""
    return _renamed(trace, lambda e: f"{e['name']}_ptsz" if e.get("cat") in CALLS and _OF_A_STREAM.match(e["name"]) else None)


def bare_kernels(trace: Recorded, rng: Random) -> Recorded | None:
    """The same kernels, named by a demangler that writes neither return types nor parameters."""

    def bare(event: Event) -> str | None:
        found = _PARAMETERS.match(event["name"]) if event.get("cat") in ON_DEVICE else None
        return found["name"] if found else None

    return _renamed(trace, bare)


def own_ranges(trace: Recorded, rng: Random) -> Recorded | None:
    """Steps marked by a range of the program instead of the profiler's schedule."""
    return _renamed(trace, lambda e: f"training step {re.findall(r'[0-9]+', e['name'])[0]}" if STEP.match(e["name"]) else None)


def _renamed(trace: Recorded, name_of: Any) -> Recorded | None:
    """The trace with each span's name as the function says, unchanged if that says None; None if it says so of all."""
    changed = False

    def renamed(event: Event) -> Event:
        nonlocal changed
        if event.get("ph") != "X" or not isinstance(event.get("name"), str) or (name := name_of(event)) is None:
            return event
        changed = True
        return {**event, "name": name}

    made = trace.map_events(renamed)
    return made if changed else None


def shuffled(trace: Recorded, rng: Random) -> Recorded | None:
    """The same events in another order: exporters write them by thread, by category or by time."""
    return trace.with_events(rng.sample(trace.events, len(trace.events)))


def no_external_id(trace: Recorded, rng: Random) -> Recorded | None:
    """Calls and kernels without the id of their op: threads and times show it as well."""
    return without_arguments(trace, ("External id", "external id"))


def without_arguments(trace: Recorded, keys: tuple[str, ...]) -> Recorded | None:
    """The trace without these arguments; None if no event has any of them."""
    found = False

    def bare(event: Event) -> Event:
        nonlocal found
        args = arguments(event)
        if not any(key in args for key in keys):
            return event
        found = True
        return {**event, "args": {key: value for key, value in args.items() if key not in keys}}

    made = trace.map_events(bare)
    return made if found else None


def renumbered(trace: Recorded, rng: Random) -> Recorded | None:
    """Other numbers for processes, threads and streams: the system hands them out."""
    device_pids = {e.get("pid") for e in trace.events if e.get("cat") in ON_DEVICE or e.get("cat") == "cuda_sync"}
    add, thread, stream = rng.randrange(1000, 9000), rng.randrange(10_000, 90_000), rng.randrange(5, 40)

    def other_value(value: Any, by: int) -> Any:
        return value + by if type(value) is int and value >= 0 else value

    def numbered(event: Event) -> Event:
        pid, tid, args = event.get("pid"), event.get("tid"), arguments(event)
        if pid in device_pids:
            known = {key: other_value(args[key], stream) for key in ("stream", "wait_on_stream") if key in args}
            return {**event, "tid": other_value(tid, stream), **({"args": {**args, **known}} if known else {})}
        return {**event, "pid": other_value(pid, add), "tid": other_value(tid, thread)} if "tid" in event else {**event, "pid": other_value(pid, add)}

    return trace.map_events(numbered)


def no_shapes(trace: Recorded, rng: Random) -> Recorded | None:
    """Recorded without `record_shapes`."""
    made = without_arguments(trace, ("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs"))
    return Recorded({key: value for key, value in made.head.items() if key != "record_shapes"}, made.events) if made else None


def no_stacks(trace: Recorded, rng: Random) -> Recorded | None:
    """The file without its Python frames. It still says that they were recorded, and its times include their overhead."""
    made = without_arguments(trace.map_events(lambda e: None if e.get("cat") == "python_function" else e), ("Call stack", "Module Hierarchy"))
    if made is not None:
        return made
    left = trace.map_events(lambda e: None if e.get("cat") == "python_function" else e)
    return left if len(left.events) < len(trace.events) else None
