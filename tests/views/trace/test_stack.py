"""Which framework a program is written in: as the recorder found it, as frames, ops and ranges tell it, and never one that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from advisor.knowledge.stacks import packs
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Timeline
from advisor.sources import read
from advisor.views.trace.stack import LIKELY, Framework, GivenFramework, Stack
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.paths import EACH, ROOT, TRACES, sampled, samples


def program(*frames: str) -> Trace:
    """Steps of a small program of PyTorch, with these frames around them."""
    trace = Trace().step(0, 100, 1).step(100, 100, 2).step(200, 100, 3).step(300, 1, 4)
    for frame in frames:
        trace.python(frame, 0, 300)
    for start in (10, 110, 210):
        trace.op("aten::mm", start, 5).op("autograd::engine::evaluate_function: MmBackward0", start + 6, 5)
        trace.launch(start + 1, start + 20, start + 60, "gemm").launch(start + 7, start + 60, start + 80, "gemm")
    return trace


def found(trace: Trace | Timeline, given: GivenFramework | None = None) -> tuple[Framework, ...]:
    timeline = trace.timeline() if isinstance(trace, Trace) else trace
    return Workspace(timeline, *([given] if given else [])).get(Stack).frameworks


def recorded(versions: dict[str, str], *loops: str, trace: Trace | None = None) -> Timeline:
    timeline = (trace or program()).timeline()
    return replace(timeline, source=replace(timeline.source, frameworks=versions, loops=loops))


TRAINER = "transformers/trainer.py(1920): _inner_training_loop"
ACCELERATE = "accelerate/accelerator.py(2500): backward"
LIGHTNING = "lightning/pytorch/loops/fit_loop.py(400): advance"
DEEPSPEED = "deepspeed/runtime/engine.py(2100): step"
LLAMA = "transformers/models/llama/modeling_llama.py(300): forward"


@pytest.mark.parametrize(
    ("frames", "packages"),
    [
        ((), ()),
        (("train.py(3): main", "torch/nn/modules/module.py(1): _call_impl"), ()),
        ((TRAINER, ACCELERATE, LLAMA), ("transformers",)),
        ((TRAINER, DEEPSPEED), ("transformers",)),
        ((ACCELERATE, LLAMA), ("accelerate", "transformers")),
        ((LIGHTNING, LLAMA), ("lightning", "transformers")),
        ((LIGHTNING, DEEPSPEED), ("lightning",)),
        ((DEEPSPEED,), ("deepspeed",)),
        ((LLAMA,), ("transformers",)),
        (("/home/me/transformers/mine.py(4): block", "trainer.py(9): train", "my_accelerate/accelerator.py(1): go"), ()),
    ],
)
def test_frames_tell_the_outermost_framework_that_the_user_writes(frames: tuple[str, ...], packages: tuple[str, ...]) -> None:
    seen = found(program(*frames))
    assert tuple(one.package for one in seen) == packages
    assert all(one.sure >= LIKELY for one in seen)


def test_the_recorder_is_believed_before_frames_and_what_was_only_imported_is_not_spoken_of() -> None:
    seen = found(
        recorded(
            {"transformers": "4.57.1", "accelerate": "1.15.0"}, "transformers.Trainer", "transformers.Model", "accelerate.Accelerator", trace=program(LIGHTNING)
        )
    )
    assert [(one.package, one.version, one.loops) for one in seen] == [("transformers", "4.57.1", ("Trainer", "Model"))]
    imported = Workspace(recorded({"timm": "1.0.31", "lightning": "2.6.6"})).get(Stack)
    assert imported.likely == () and {one.package for one in imported.frameworks} == {"timm", "lightning"}


def test_what_the_user_names_overrules_what_was_found() -> None:
    assert [(one.package, one.version) for one in found(program(TRAINER), GivenFramework("lightning", "2.5.5"))] == [("lightning", "2.5.5")]
    assert found(program(), GivenFramework("lightning"))[0].loops == packs()["lightning"].loops
    known = found(recorded({"transformers": "4.57.1"}, "transformers.Model"), GivenFramework("transformers"))
    assert [(one.version, one.loops) for one in known] == [("4.57.1", ("Model",))]


def test_a_server_is_told_by_its_ops() -> None:
    seen = found(program().op("vllm::unified_attention", 30, 5))
    assert [(one.package, one.drives) for one in seen] == [("vllm", True)]


def checked(times: int) -> Trace:
    trace = program(TRAINER)
    for at in range(times):
        for start in (30, 130, 230):
            for i, op in enumerate(("aten::isnan", "aten::isinf", "aten::is_nonzero")):
                trace.op(op, start + 10 * at + i, 0.5)
    return trace


def test_a_default_is_seen_at_work_by_its_ops_in_each_step() -> None:
    filtered = "logging_nan_inf_filter=False"
    assert found(checked(1))[0].defaults == (filtered,)
    assert found(program(TRAINER))[0].defaults == ()
    once = program(TRAINER).op("aten::isnan", 30, 1).op("aten::isinf", 32, 1).op("aten::is_nonzero", 34, 1)
    assert found(once)[0].defaults == ()


@pytest.mark.parametrize(("frame", "times", "seen"), [
    ("transformers/trainer.py(2300): _maybe_log_save_evaluate", 3, ("logging_steps=100",)),
    ("transformers/trainer.py(2300): _maybe_log_save_evaluate", 1, ()),
    ("mine.py(3): log", 3, ()),
])  # fmt: skip
def test_a_setting_is_seen_by_the_frame_below_which_its_ops_run(frame: str, times: int, seen: tuple[str, ...]) -> None:
    trace = program(TRAINER)
    for start in (30, 130, 230)[:times]:
        trace.python(frame, start, 6).op("aten::item", start + 1, 4)
        trace.op("aten::item", start + 40, 4)
    assert found(trace)[0].defaults == seen


def test_a_default_is_seen_by_ops_inside_of_others() -> None:
    def filled(outer: str) -> Trace:
        trace = program(LIGHTNING)
        for start in (30, 130, 230):
            trace.op(outer, start, 4).op("aten::fill_", start + 1, 2)
        return trace

    assert found(filled("aten::empty"))[0].defaults == ("deterministic=False",)
    assert found(filled("aten::zeros"))[0].defaults == ()


def test_deterministic_algorithms_fill_what_is_empty() -> None:
    torch = pytest.importorskip("torch")
    torch.use_deterministic_algorithms(True)
    try:
        with torch.profiler.profile() as profiler:
            torch.ones(2, 4) @ torch.ones(4, 4)
    finally:
        torch.use_deterministic_algorithms(False)
    seen = {(seen.ops, seen.inside) for pack in packs().values() for option in pack.options if (seen := option.seen) and "determin" in option.option}
    ((ops, inside),) = seen
    assert any(event.name in ops and event.cpu_parent and event.cpu_parent.name == inside for event in profiler.events())


def test_ops_of_anomaly_mode_are_those_that_the_pack_looks_for() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(4, 4, requires_grad=True)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(), torch.profiler.profile() as profiler:
        (torch.ones(2, 4) @ weight).sum().backward()
    (seen,) = (option.seen for option in packs()["lightning"].options if option.option == "detect_anomaly=False")
    assert set(seen.ops) <= {event.name for event in profiler.events()}


def of_jax(*frames: str) -> Trace:
    trace = Trace(recorder="jax").step(0, 100, 1).step(100, 100, 2)
    for frame in frames:
        trace.python(frame, 0, 200)
    for start in (10, 110):
        trace.op("PjitFunction(step)", start, 20).launch(start + 1, start + 20, start + 60, "fusion")
    return trace


def test_a_program_of_jax_is_told_the_words_of_jax_behind_those_of_its_framework() -> None:
    assert [one.package for one in found(of_jax())] == ["jax"]
    assert [one.package for one in found(of_jax("flax/nnx/transforms/compilation.py(20): wrapper"))] == ["flax", "jax"]
    assert [(one.package, one.version) for one in found(of_jax(), GivenFramework("equinox"))] == [("equinox", ""), ("jax", "")]
    assert [(one.package, one.version) for one in found(recorded({"jax": "0.9.2"}, trace=of_jax()))] == [("jax", "0.9.2")]
    assert [(one.package, one.version) for one in found(of_jax(), GivenFramework("jax", "0.7.2"))] == [("jax", "0.7.2")]


def test_a_framework_of_jax_is_none_of_a_program_of_torch() -> None:
    assert found(program("flax/nnx/transforms/compilation.py(20): wrapper")) == ()


RECORDED = sorted([*TRACES.glob("*.trace.zst"), *samples("*/*.json.gz"), *samples("*/*.trace.zst")])


@pytest.mark.parametrize("path", sampled(RECORDED, 4 * EACH), ids=lambda path: path.name)
def test_no_recording_names_a_framework_that_its_program_does_not_import(path: Path) -> None:
    recording = read(path)
    workspace = Workspace(*recording.parts)
    if not workspace.can_build(Stack.build):
        return
    name = path.name.partition(".")[0]
    of_jax = ROOT / "samples" / "jax" / ("record.py" if (ROOT / "samples" / "jax" / f"{name}.slow.xplane.pb.gz").is_file() else "none.py")
    homes = (ROOT / "corpus" / "programs" / f"{name}.py", path.parent / "engine.py", of_jax, ROOT / "samples" / "public_models.py")
    text = next(program for program in homes if program.is_file()).read_text(encoding="utf-8")
    for one in workspace.get(Stack).likely:
        assert re.search(rf"\b{packs()[one.package].module}\b", text), one
