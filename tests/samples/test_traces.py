"""What is done to a recorded trace before it becomes a sample."""

import gzip
import json
from pathlib import Path

import pytest
import traces

ROOT = Path("/work/project/samples")


def scrubbed(text: str) -> str:
    return traces.scrub({"traceEvents": [{"name": text}]}, ROOT)["traceEvents"][0]["name"]


@pytest.mark.parametrize(
    ("recorded", "kept"),
    [
        ("/opt/torch/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py(1779): _call_impl",
         "torch/nn/modules/module.py(1779): _call_impl"),
        ("/usr/lib/python3/dist-packages/numpy/core/x.py(3): f", "numpy/core/x.py(3): f"),
        ("/usr/lib/python3.12/threading.py(1030): _bootstrap", "threading.py(1030): _bootstrap"),
        ("/work/project/samples/workloads/memcpy.py(40): step", "workloads/memcpy.py(40): step"),
        ("/tmp/torchinductor_alice/ab/cabc.py", "torchinductor/ab/cabc.py"),
        ("/home/alice/secret/train.py(7): main", "train.py(7): main"),
        ("/home/alice/.venv/bin/python3", "python3"),
        ("torch/nn/functional.py(2): linear", "torch/nn/functional.py(2): linear"),
        ("<built-in method append of list object at 0x7f1af7843840>", "<built-in method append of list object at 0x0>"),
        ("est. bytes/s", "est. bytes/s"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::op<float> >(int, float*)",
         "void at::native::vectorized_elementwise_kernel<4, at::native::op<float> >(int, float*)"),
    ],
)  # fmt: skip
def test_paths_become_neutral(recorded: str, kept: str) -> None:
    assert scrubbed(recorded) == kept


def test_host_name_and_private_keys_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces.socket, "gethostname", lambda: "gpu-node-17")
    trace = {
        "schemaVersion": 1,
        "PT_PROFILER_JOB_NAME": "x",
        "host_name": "gpu-node-17",
        "ENV": {"HOME": "/root"},
        "traceEvents": [{"name": "on gpu-node-17", "args": {"name": "python3", "hostname": "x", "Input Dims": [[2, 3]]}}],
    }
    assert traces.scrub(trace, ROOT) == {
        "schemaVersion": 1,
        "traceEvents": [{"name": "on host", "args": {"name": "python3", "Input Dims": [[2, 3]]}}],
    }


def gpu(start: float, duration: float, correlation: int, category: str = "kernel") -> dict[str, object]:
    return {"cat": category, "name": "k", "ts": start, "dur": duration, "args": {"correlation": correlation}}


def test_gpu_busy_counts_overlap_once_and_only_what_was_launched() -> None:
    launches = [{"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0.0, "dur": 1.0, "args": {"correlation": c}} for c in (1, 2, 3)]
    work = [gpu(10.0, 10.0, 1), gpu(15.0, 10.0, 2, "gpu_memcpy"), gpu(40.0, 5.0, 3), gpu(0.0, 8.0, 99)]
    assert traces.gpu_busy_us({"traceEvents": launches + work}) == 20.0
    assert traces.gpu_busy_us({"traceEvents": []}) == 0.0


@pytest.mark.parametrize("head", [{}, {"schemaVersion": 1, "traceName": "slow.json"}])
def test_what_is_written_reads_back_and_is_the_same_each_time(tmp_path: Path, head: dict[str, object]) -> None:
    trace = {**head, "traceEvents": [gpu(4346359375323.509, 7415.127, 1), gpu(1.0, 2.0, 2)]}
    size = traces.write(trace, tmp_path / "rule" / "slow.json.gz")
    first = (tmp_path / "rule" / "slow.json.gz").read_bytes()
    traces.write(trace, tmp_path / "again.json.gz")
    assert len(first) == size and first == (tmp_path / "again.json.gz").read_bytes()
    assert json.loads(gzip.decompress(first)) == trace
