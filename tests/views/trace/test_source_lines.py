"""The user's line behind a call: the innermost frame that is the user's."""

import pytest

from advisor.views.trace.source_lines import Sources, user_frame
from tests.build import Trace

MAIN, MODEL = "train.py(10): main", "models/block.py(5): forward"


def line(trace, call=0):
    found = trace.get(Sources).line_of_call(call)
    return f"{found.file}:{found.line}" if found else None


@pytest.mark.parametrize(
    ("frame", "file", "number"),
    [
        ("train.py(88): step", "train.py", 88),
        ("src/my_project/models/block.py(5): forward", "src/my_project/models/block.py", 5),
        ("C:\\work\\train.py(3): <module>", "C:\\work\\train.py", 3),
        ("train (copy).py(7): f", "train (copy).py", 7),
        ("torch_utils/loop.py(9): run", "torch_utils/loop.py", 9),
        ("my/random.py(4): shuffle", "my/random.py", 4),
        ("train.py(12): <lambda>", "train.py", 12),
    ],
)
def test_frames_of_the_user(frame, file, number):
    assert (user_frame(frame).file, user_frame(frame).line) == (file, number)


@pytest.mark.parametrize(
    "frame",
    [
        "torch/nn/modules/module.py(1773): _call_impl", "/usr/lib/python3.12/threading.py(1030): _bootstrap", "threading.py(1030): run",
        "/opt/venv/lib/python3.11/site-packages/transformers/x.py(1): forward", "/usr/lib/python3/dist-packages/numpy/a.py(1): f",
        "<built-in method item of Tensor object at 0x7f>", "<frozen importlib._bootstrap>(100): _load", "nn.Module: Linear_0",
        "contextlib.py(81): inner", "multiprocessing/connection.py(3): recv", "torchvision/ops/misc.py(3): forward",
        "triton/runtime/jit.py(500): run", "<string>(1): <module>", "", "train.py", "...(3): cut",
        "/tmp/torchinductor_me/gi/generated.py(188): call", f"/cache/gi/c{'a5' * 25}b.py(188): call",
    ],
)  # fmt: skip
def test_frames_of_others(frame):
    assert user_frame(frame) is None


def test_the_innermost_user_frame_below_library_frames():
    trace = Trace().python(MAIN, 0, 100).python("torch/nn/modules/module.py(1773): _call_impl", 5, 90).python(MODEL, 10, 80)
    trace.python("torch/nn/functional.py(2): linear", 15, 60).python("<built-in function linear>", 16, 58).launch(20, 30, 40)
    assert line(trace) == "models/block.py:5"


def test_a_script_that_is_called_like_a_module_of_pythons_is_the_users():
    trace = Trace().python("statistics.py(40): <module>", 0, 100).python("statistics.py(12): step", 5, 90).python("queue.py(7): get", 10, 80)
    assert line(trace.launch(20, 30, 40)) == "statistics.py:12"
    imported = Trace().python("<frozen importlib._bootstrap>(1): _load", 0, 100).python("statistics.py(40): <module>", 5, 90)
    assert line(imported.launch(20, 30, 40)) is None


def test_a_frame_that_has_returned_is_not_running():
    trace = Trace().python(MAIN, 0, 100).python(MODEL, 10, 20).python("torch/x.py(1): f", 30, 10).launch(35, 50, 60)
    assert line(trace) == "train.py:10"
    assert line(Trace().python(MAIN, 0, 10).launch(35, 50, 60)) is None


def test_frames_of_another_thread_are_not_around_the_call():
    assert line(Trace().python(MAIN, 0, 100, tid=2).launch(35, 50, 60)) is None


def test_the_parent_that_was_recorded_counts_where_times_say_otherwise():
    # The callee's clock runs over its caller's end; by time its parent would be the frame that comes next.
    trace = Trace().python(MAIN, 0, 30).python("torch/x.py(1): f", 10, 40).python("other.py(2): later", 30, 100)
    for row, (own, parent) in zip(trace.rows["python_calls"], [(1, -1), (2, 1), (3, -1)], strict=True):
        row.update(python_id=own, parent_id=parent)
    trace.launch(29, 50, 60).launch(35, 60, 70)
    assert [line(trace, 0), line(trace, 1)] == ["train.py:10", "other.py:2"]


def test_a_parent_that_was_not_recorded_ends_the_search():
    trace = Trace().python("torch/x.py(1): f", 10, 40).python(MAIN, 60, 10)
    trace.rows["python_calls"][0].update(python_id=7, parent_id=3)
    trace.rows["python_calls"][1].update(python_id=9, parent_id=3)
    trace.launch(29, 50, 60)
    assert line(trace) is None


def test_a_backward_op_points_to_the_line_of_its_forward_op():
    trace = Trace().python(MAIN, 0, 200).python(MODEL, 10, 50).op("aten::linear", 20, 10, sequence=4).op("aten::mul", 70, 5, sequence=5)
    trace.python("torch/_tensor.py(1): backward", 100, 90)
    for at, sequence in ((110, 5), (130, 4)):
        trace.op("autograd::engine::evaluate_function: X", at, 15, tid=2).op("XBackward0", at + 1, 12, tid=2, sequence=sequence)
        trace.op("aten::mm", at + 2, 10, tid=2).launch(at + 4, at + 50, at + 60, tid=2)
    assert [line(trace, 0), line(trace, 1)] == ["train.py:10", "models/block.py:5"]


def test_a_backward_op_without_a_forward_one_points_nowhere():
    trace = Trace().python(MAIN, 0, 200).op("XBackward0", 110, 12, tid=2, sequence=4).launch(115, 150, 160, tid=2)
    assert line(trace) is None


def test_the_line_that_made_most_of_the_calls():
    trace = Trace().python(MAIN, 0, 1000).python(MODEL, 100, 500)
    for at in (10, 150, 200, 250, 700):
        trace.launch(at, 2000 + at, 2010 + at)
    assert trace.get(Sources).most_common(range(5)).file == "models/block.py"
    assert trace.get(Sources).most_common([0, 4]).file == "train.py"
    assert trace.get(Sources).most_common([]) is None


def test_without_stacks_there_is_no_line():
    sources = Trace().launch(0, 5, 10).get(Sources)
    assert sources.line_of_call(0) is None and sources.most_common([0]) is None and sources.line_of_call(-1) is None


def test_a_stack_that_is_text_on_an_op_is_read_where_no_frames_were_recorded():
    stack = "/opt/lib/python3.7/site-packages/torch/optim/optimizer.py(216): zero_grad;{}.py({}): <module>"
    trace = Trace().op("Optimizer.zero_grad", 0, 90).op("aten::zero_", 10, 50).op("aten::fill_", 15, 40)
    trace.rows["cpu_ops"][1]["call_stack"] = stack.format("queue", 49)
    assert line(trace.launch(20, 30, 40)) == "queue.py:49"
    frames = trace.python(MAIN, 0, 100)
    assert line(frames) == "train.py:10"


def test_the_backward_pass_has_the_stack_of_its_forward_op():
    trace = Trace().op("aten::mm", 0, 10, sequence=7).op("MmBackward0", 20, 50, tid=9, sequence=7).launch(25, 60, 70, tid=9)
    trace.rows["cpu_ops"][0]["call_stack"] = MODEL
    assert line(trace) == "models/block.py:5"
