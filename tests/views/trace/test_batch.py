"""How many samples a step works on: from the server's marks, or from what convolutions read."""

import pytest

from advisor.views.time.kernel_table import KernelTable
from advisor.views.time.step_work import Batch
from tests.build import Trace


def steps(body, count=5):
    made = Trace()
    for i in range(count):
        made.step(i * 100, 100).launch(i * 100 + 1, i * 100 + 5, i * 100 + 90, grid_blocks=33)
        body(made, i)
    return made


@pytest.mark.parametrize(
    ("mark", "samples"),
    [("execute_context_0(0)_generation_16(16)", 16), ("execute_context_2(812)_generation_6(6)", 8), ("step[DECODE bs=4 toks=4]", 4), ("forward", 0)],
)
def test_marks_of_a_server_say_how_many_requests_share_a_step(mark, samples):
    assert steps(lambda trace, i: trace.note(mark, i * 100 + 2, 50)).get(Batch).a_step == samples


def test_convolutions_that_agree_on_their_first_dimension():
    image = [[32, 3, 224, 224], [64, 3, 7, 7]]
    found = steps(lambda trace, i: trace.op("aten::conv2d", i * 100 + 2, 5, image).op("aten::conv2d", i * 100 + 9, 5, image)).get(Batch)
    assert (found.a_step, found.source) == (32, "the inputs of its convolutions")
    other = steps(lambda trace, i: trace.op("aten::conv2d", i * 100 + 2, 5, [[32 + i, 3, 8, 8], [4, 3, 3, 3]])).get(Batch)
    assert other.a_step == 0, "the batch changes: no one number"


def test_active_multiprocessors_are_those_that_have_a_block():
    (row,) = steps(lambda trace, i: None).get(KernelTable).rows
    assert row.active_sms == 33 / 132
