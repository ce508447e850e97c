"""What is measured: each subject runs in a process of its own and prints the CPU seconds that it and its own processes took, imports included.

    python tests.benchmarks/subjects.py NAME PATH

Peers run under their own interpreter, so nothing here may import what advisor needs before it is chosen.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path


def load(path: str) -> None:
    import advisor

    advisor.load(path)


def load_alone(path: str) -> None:
    import advisor

    advisor.load(path, processes=1)


def analyze(path: str) -> None:
    _command("analyze", path, "--format", "json")


def redact(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _command("redact", path, str(Path(folder) / Path(path).name))


def diff(path: str) -> None:
    """Two traces, here one twice."""
    _command("diff", path, path)


def history(path: str) -> None:
    _command("history", path)


def _command(*words: str) -> None:
    """A command of advisor as a shell starts it, its output thrown away."""
    from advisor.cli import main

    sys.argv, sys.stdout = ["advisor", *words], open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout = sys.__stdout__


def json_load_each(path: str) -> None:
    """Every file of a directory."""
    import json

    for one in Path(path).iterdir():
        json.loads(one.read_bytes())


def breakdowns(path: str) -> None:
    """What HolisticTraceAnalysis is asked for: busy and idle time, causes of idle time, time by kernel."""
    import advisor
    from advisor.views.time.device_time import Partition
    from advisor.views.time.idle_gaps import Gaps
    from advisor.views.time.kernel_table import KernelTable
    from advisor.views.workspace import Workspace

    workspace = Workspace(advisor.load(path))
    for view in (Partition, Gaps, KernelTable):
        workspace.get(view)


def json_load(path: str) -> None:
    import json

    with open(path, "rb") as file:
        json.load(file)


def simdjson(path: str) -> None:
    """The bare parse, cold: no value is turned into a Python object."""
    from simdjson import Parser

    Parser().load(path)


def hta(path: str) -> None:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/")
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)


def tensorboard(path: str) -> None:
    """What the plugin makes of a run before it shows anything; the plugin goes by the names of files."""
    from torch_tb_profiler.io.cache import Cache
    from torch_tb_profiler.profiler.loader import RunLoader

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "host_1.1700000000000.pt.trace.json"
        try:
            os.link(path, trace)
        except OSError:
            shutil.copy(path, trace)
        with Cache() as caches:
            if not RunLoader("run", folder, caches).load().profiles:
                raise SystemExit("the plugin read nothing")


def sqlite_rows(path: str) -> None:
    """Every row of an export, as Python objects."""
    import sqlite3

    from tests.benchmarks.nsys_export import TABLES

    db = sqlite3.connect(path)
    for table in TABLES:
        for _ in db.execute(f"SELECT * FROM {table}"):
            pass


def protobuf_walk(path: str) -> None:
    """Every field of an XPlane decoded by Google's own parser (upb, in C), into objects that nobody looks at."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="xplane.proto", package="x", syntax="proto3")
    messages = {
        "Stat": [(1, kinds.TYPE_INT64), (2, kinds.TYPE_DOUBLE), (3, kinds.TYPE_UINT64), (4, kinds.TYPE_INT64), (5, kinds.TYPE_BYTES), (6, kinds.TYPE_BYTES), (7, kinds.TYPE_UINT64)],
        "Event": [(1, kinds.TYPE_INT64), (2, kinds.TYPE_INT64), (3, kinds.TYPE_INT64), (4, "Stat")],
        "Line": [(1, kinds.TYPE_INT64), (2, kinds.TYPE_BYTES), (3, kinds.TYPE_INT64), (4, "Event")],
        "Plane": [(1, kinds.TYPE_INT64), (2, kinds.TYPE_BYTES), (3, "Line"), (4, kinds.TYPE_BYTES), (5, kinds.TYPE_BYTES), (6, "Stat")],
        "Space": [(1, "Plane")],
    }  # fmt: skip
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, kind in fields:
            field = message.field.add(name=f"f{number}", number=number, label=kinds.LABEL_OPTIONAL)
            if isinstance(kind, str):
                field.type, field.type_name, field.label = kinds.TYPE_MESSAGE, f".x.{kind}", kinds.LABEL_REPEATED
            else:
                field.type = kind
                if (name, number) in (("Plane", 4), ("Plane", 5)):
                    field.label = kinds.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    space = message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Space"))
    space.FromString(Path(path).read_bytes())


def unpickle(path: str) -> None:
    """The standard library's unpickler, told to make no object of a class."""
    import pickle

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            raise pickle.UnpicklingError(f"{module}.{name}")

    with open(path, "rb") as file:
        Restricted(file).load()


def ncu_report(path: str) -> None:
    """NVIDIA's own reader: every metric of every kernel."""
    import ncu_report

    for part in ncu_report.load_report(path):
        for kernel in part:
            for name in kernel:
                kernel[name].value()


def read_snapshot(path: str) -> None:
    from advisor.sources import read

    read(path)


SUBJECTS = {
    f.__name__: f
    for f in (
        load, load_alone, breakdowns, analyze, redact, diff, history, json_load, json_load_each, simdjson, hta, tensorboard, sqlite_rows, protobuf_walk,
        unpickle, ncu_report, read_snapshot,
    )
}  # fmt: skip


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    SUBJECTS[sys.argv[1]](sys.argv[2])
    print(f"seconds {sum(os.times()[:4])}", flush=True)
