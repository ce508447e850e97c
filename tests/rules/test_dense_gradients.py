"""dense-gradients: found where a table is far longer than what is read of it, quiet on short tables and sparse gradients."""

import pytest

from tests.rules.test_rules import clear, found, queued, repeat, skipped

WIDTH = 64


def speak(rows=100_000, read=1000, tables=1, bag=False, optimizer="aten::_foreach_add_"):
    """Each table: a lookup of 5 µs; a gradient filled in 50 and summed in 10; an update of 100 that takes the table and as large a weight."""

    def body(trace, host, gpu):
        at = gpu
        for k in range(tables):
            t = host + 6 * k
            trace.op("aten::embedding_bag" if bag else "aten::embedding", t, 2, dims=[[rows, WIDTH], [read]]).launch(t, at, at + 5, "lookup", dur=0.5)
            name = "aten::_embedding_bag_dense_backward" if bag else "aten::embedding_dense_backward"
            dims = [[16, WIDTH], [read]] if bag else [[read, WIDTH], [read]]
            trace.op(name, t + 2, 4, dims=dims)
            trace.op("aten::fill_", t + 2.5, 1, dims=[[rows, WIDTH], []]).launch(t + 3, at + 5, at + 55, "fill", dur=0.2)
            trace.launch(t + 4, at + 55, at + 65, "sum rows", dur=0.5)
            at += 65
        t = host + 6 * tables
        shapes = [[rows, WIDTH]] * tables + [[2 * rows * tables, WIDTH // 2]]
        trace.op(optimizer, t, 2, dims=[shapes, shapes]).launch(t + 0.5, at, at + 100, "multi_tensor_apply_kernel", dur=0.5)

    return body


def test_a_long_table_is_told_with_the_update_of_it():
    finding = found("dense-gradients", queued(speak(), host=50, gpu=165))
    assert finding.summary.startswith("1 embedding table of 100,000 rows gets a dense gradient every step, for 1,000 rows read")
    assert finding.saving.expected_us == pytest.approx(50 + 50, rel=0.05), "no zeros, and half of the update"
    assert "sparse=True" in finding.fix.code.after and "offsets" not in finding.fix.code.after


def test_several_tables_become_one():
    finding = found("dense-gradients", queued(speak(tables=4), host=60, gpu=360))
    assert "4 embedding tables of 400,000 rows get" in finding.summary and "offsets" in finding.fix.code.after
    assert finding.saving.expected_us == pytest.approx(4 * 50 + 50 + 3 * (10 + 5), rel=0.05)
    assert finding.saving.low_us < finding.saving.expected_us


def test_what_a_bag_reads_are_its_indices():
    assert "for 1,000 rows read" in found("dense-gradients", queued(speak(bag=True), host=50, gpu=165)).summary


def test_a_table_that_is_mostly_read_is_quiet_on_either_side_of_the_limit():
    body = speak(rows=4000, read=1000)
    found("dense-gradients", queued(body, host=50, gpu=165))
    assert "4 times as many rows" in clear("dense-gradients", queued(speak(rows=3990, read=1000), host=50, gpu=165))


def test_other_gradients_are_quiet_and_shapes_are_needed():
    def body(trace, host, gpu):
        trace.op("aten::mm", host, 5, dims=[[64, 64], [64, 64]]).launch(host + 1, gpu, gpu + 100, "gemm")

    assert clear("dense-gradients", queued(body)) == "no embedding table gets a dense gradient"
    assert "shapes" in skipped("dense-gradients", repeat(50, lambda trace, at: trace.op("aten::mm", at, 5).launch(at + 1, at + 5, at + 45)))
