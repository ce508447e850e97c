"""Which row of the table a wait belongs to."""

import pytest

from advisor.knowledge.host_waits import Waited, as_rows, host_wait, measured_with, table

READ = ("aten::item", "aten::_local_scalar_dense")
COPIED = ("aten::to", "aten::_to_copy", "aten::copy_")
SCRIPT = "train.py(12): step"


def of(*ops, **seen):
    found = host_wait(Waited("cudaStreamSynchronize", ops, **{"copy": "to-host", **seen}))
    return found.call if found else None


@pytest.mark.parametrize(
    ("ops", "says"),
    [
        (("aten::repeat_interleave", "aten::repeat_interleave", *READ), "output_size="),
        (("aten::bincount", *READ), "scatter_add_"),
        (("aten::bincount", *COPIED), "scatter_add_"),
        (("aten::one_hot", *READ), "num_classes="),
        (("aten::histc", *COPIED), "min= and max="),
        (("aten::_unique2", *READ), "presence mask"),
        (("aten::mode",), "argmax"),
        (("aten::linalg_cholesky", "aten::_linalg_check_errors", *READ), "cholesky_ex"),
        (("aten::linalg_solve", "aten::_linalg_check_errors", *READ), "solve_ex"),
        (("aten::linalg_unheard_of", "aten::_linalg_check_errors", *READ), "_ex"),
        (("aten::linalg_pinv", "aten::svd", "aten::linalg_svd", "aten::_linalg_svd"), "fewer, batched calls"),
        (("aten::istft", "aten::equal", *READ), "envelope"),
        (("aten::index", "aten::nonzero"), "torch.where(mask, x, 0)"),
        (("aten::index_put_", "aten::_index_put_impl_", "aten::nonzero"), "masked_scatter_"),
        (("aten::where", "aten::nonzero_numpy", "aten::nonzero"), "nonzero_static"),
        (("torchvision::nms", "aten::masked_select", "aten::nonzero"), "batched_nms"),
        (("my::routing", "aten::masked_select", "aten::nonzero"), "torch.where(mask, x, 0)"),
        (("aten::to_sparse", "aten::_to_sparse", "aten::nonzero"), "sparse"),
        (("aten::_nested_tensor_from_mask_left_aligned", "aten::equal"), "enable_nested_tensor=False"),
    ],
)
def test_a_wait_is_of_the_outermost_op_that_is_known(ops, says):
    found = host_wait(Waited("cudaStreamSynchronize", ops, copy="to-host"))
    assert found and says in found.instead


@pytest.mark.parametrize("ops", [("aten::unheard_of", *READ), ("my::op", *COPIED), ("aten::unheard_of",), ("my::op", "aten::is_nonzero", *READ)])
def test_what_nobody_knows_gets_no_row(ops):
    assert of(*ops) is None


@pytest.mark.parametrize(
    ("ops", "seen", "call"),
    [
        (READ, {"frames": ("<built-in method item of Tensor>", SCRIPT), "direct": False, "library": False}, ".item(), float(loss)"),
        (READ, {"frames": (SCRIPT,), "direct": True, "library": False, "then": ("aten::slice",)}, "x[i], x[:i], arange(0, i) with a CUDA scalar"),
        (READ, {"frames": (SCRIPT,), "direct": True, "library": False}, "int(i), float(x), range(i)"),
        (READ, {"then": ("aten::slice",)}, ".item(), or an index by a CUDA scalar"),
        (READ, {}, ".item(), float(loss)"),
        (READ, {"frames": ("<built-in method item of Tensor>", "lib/x.py(3): f", SCRIPT), "direct": False, "library": True}, "a value that a library reads"),
        (READ, {"frames": ("<built-in method item of Tensor>", "torch/amp/grad_scaler.py(371): <genexpr>", SCRIPT)}, "GradScaler.step"),
        (READ, {"optimizer": "Optimizer.step#LBFGS.step"}, "LBFGS.step"),
        (READ, {"optimizer": "Optimizer.step#AdamW.step"}, ".item(), float(loss)"),
        (READ, {"optimizer": "Optimizer.step#LBFGS.step", "frames": (SCRIPT,), "direct": True, "library": False}, "int(i), float(x), range(i)"),
        (READ, {"parent": "autograd::engine::evaluate_function: AddmmBackward0"}, "detect_anomaly"),
        (("aten::is_nonzero", *READ), {"before": ("aten::eq", "aten::_is_all_true")}, "a distribution that validates its arguments"),
        (("aten::is_nonzero", *READ), {"frames": ("torch/distributions/distribution.py(46): __init__", SCRIPT)}, "a distribution that validates its arguments"),
        (("aten::is_nonzero", *READ), {"before": ("aten::isnan", "aten::any")}, "if tensor:"),
        (("aten::is_nonzero", *READ), {"before": ("aten::lt",)}, "if a < b, with CUDA tensors"),
        (("aten::is_nonzero", *READ), {"before": ("aten::eq", "aten::is_nonzero", "aten::eq")}, "i in [1, 2, 3] with a CUDA scalar"),
        (("aten::is_nonzero", *READ), {"frames": ("<built-in function max>", SCRIPT)}, "min, max, sorted, any, all of Python over a tensor"),
        (COPIED, {"copy": "to-device", "then": ("aten::lift_fresh", "aten::index")}, "x[[0, 5, 9]], x[index on the CPU]"),
        (COPIED, {"copy": "to-device", "then": ("aten::lift_fresh", "aten::detach_")}, 'torch.tensor(3., device="cuda"), new_tensor, as_tensor(list)'),
        (COPIED, {"copy": "to-device", "frames": ("torch/nested/__init__.py(216): nested_tensor",)}, "nested_tensor(layout=torch.jagged) of a list"),
        (COPIED, {"copy": "to-device"}, '.to("cuda"), .cuda() of pageable memory'),
        (COPIED, {"copy": "to-device", "memory": "pinned"}, 'pinned .to("cuda") without non_blocking'),
        (COPIED, {"then": ("aten::to", "aten::_pack_padded_sequence")}, "pack_padded_sequence with lengths on the GPU"),
        (COPIED, {}, '.cpu(), .to("cpu"), .tolist(), .numpy()'),
        (("aten::copy_",), {"copy": "to-device", "bytes": 4.0, "before": ("aten::select",)}, "x[2] = 0.5, x[2] = tensor on the CPU"),
        (("aten::copy_",), {"copy": "to-device", "bytes": 4096.0, "before": ("aten::slice",)}, '.to("cuda"), .cuda() of pageable memory'),
        (("aten::where", *COPIED), {"copy": "to-device"}, "torch.where(c, x, tensor on the CPU)"),
        ((), {}, "torch.cuda.synchronize()"),
    ],
)
def test_neighbours_frames_and_copies_tell_calls_of_one_op_apart(ops, seen, call):
    assert of(*ops, **seen) == call


def test_the_table_reads_as_a_table():
    headings, *rows = as_rows()
    assert len(headings) == 3 and len(rows) == len(table().wait) + 1 and all(all(row) for row in rows)
    assert "torch 2.11" in measured_with() and any("clip_grad_norm_" in row[2] for row in rows if row[1] == "0")


def test_only_what_fits_any_wait_of_its_kind_is_without_code():
    assert {row.call for row in table().wait if not row.code and not row.general} <= {
        "LBFGS.step",
        "batched_nms",
        "a routine of linalg that checks its error code",
    }
