"""The fix of a wait is of the call that waits."""

from tests.build import Trace
from tests.rules.test_rules import clear, found


def reading(*ops):
    """A step that reads a value inside these ops, the outer first, while the GPU has 60 µs to do."""
    trace = Trace()
    for step in range(5):
        at = 100 * step
        trace.step(at, 99, step + 1).op("aten::mm", at, 30).launch(at + 20, at + 26, at + 86, dur=4)
        for depth, op in enumerate(ops):
            trace.op(op, at + 31 + 0.1 * depth, 66 - depth)
        trace.copy(at + 33, 4, at + 86, at + 87, "Pinned", 4, kind="DtoH").call("cudaStreamSynchronize", at + 38, 50)
    return trace


def test_a_read_inside_a_call_is_mended_there_and_not_as_a_running_loss():
    fix = found("sync-stall", reading("aten::repeat_interleave", "aten::item", "aten::_local_scalar_dense")).fix
    assert "output_size=" in fix.steps[0] and "output_size=" in fix.code.after and "repeat_interleave" in fix.url
    assert "detach" not in str(fix)


def test_a_call_that_nobody_knows_gets_general_words_that_name_it():
    fix = found("sync-stall", reading("my::routing", "aten::item", "aten::_local_scalar_dense")).fix
    assert fix.steps[0].startswith("my::routing waits for the GPU") and fix.code is None


def test_values_that_a_call_sends_are_told_as_that_and_from_a_smaller_share():
    trace = Trace()
    for step in range(5):
        at = 400 * step
        trace.step(at, 399, step + 1).op("aten::mm", at, 20).launch(at + 10, at + 16, at + 116, dur=4)
        trace.op("aten::to", at + 30, 200).op("aten::copy_", at + 31, 190).copy(at + 33, 4, at + 117, at + 120, "Pageable", 24)
        trace.call("cudaStreamSynchronize", at + 38, 170)
        trace.op("aten::lift_fresh", at + 231, 2).op("aten::index", at + 235, 20).launch(at + 240, at + 246, at + 300, dur=4)
    assert "threshold 90%" in clear("memcpy", trace, min_saving_share=0.9, min_value_share=0.9)
    fix = found("memcpy", trace, min_saving_share=0.9).fix
    assert fix.title == "Keep the values that each call sends on the GPU" and "index tensor once on the device" in fix.steps[0]
