"""Data comes out as the standard library gives it; what would run code, or eat memory, is refused."""

import builtins
import collections
import functools
import gzip
import os
import pickle
import struct
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import TraceError
from advisor.sources import read
from advisor.sources.memory.pickles import loads
from tests.paths import examples

leaves = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text() | st.binary(max_size=300)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner), max_leaves=30)


@settings(max_examples=examples(80), deadline=None)
@given(values, st.sampled_from([2, 3, 4, 5]))
def test_data_is_read_as_the_standard_library_reads_it(value, protocol):
    try:
        found = loads(pickle.dumps(value, protocol), "x")
    except TraceError as error:
        assert protocol == 2 and "would make or call" in error.message, error  # bytes before protocol 3 are a call
    else:
        assert found == value


def test_shared_values_stay_shared():
    frames = [{"name": "f"}]
    found = loads(pickle.dumps({"a": frames, "b": frames}), "x")
    assert found["a"] is found["b"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("factory", [None, list, dict, int, set, str])
def test_a_defaultdict_of_a_builtin_type_is_read_as_a_dict(factory, protocol):
    value = collections.defaultdict(factory, {"a": [1]})
    found = loads(pickle.dumps([value, value], protocol), "x")
    assert found == [value, value] and type(found[0]) is dict and found[0] is found[1]


class Gadget:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


class Plain:
    pass


GADGETS = {
    "os.system": Gadget(os.system, ("touch {canary}",)),
    "subprocess": Gadget(subprocess.check_output, (["touch", "{canary}"],)),
    "eval": Gadget(builtins.eval, ("open('{canary}', 'w')",)),
    "exec": Gadget(builtins.exec, ("open('{canary}', 'w')",)),
    "import": Gadget(builtins.__import__, ("this",)),
    "getattr": Gadget(builtins.getattr, ("", "join")),
    "partial": Gadget(functools.partial, (os.system, "touch {canary}")),
    "instance": Plain(),
    "class": Plain,
    "function": print,
    "set": {1, 2},
    "bytearray": bytearray(b"x"),
    "ordered": collections.OrderedDict(a=1),
    "counter": collections.Counter("a"),
    "factory": collections.defaultdict(print),
    "defaultdicts": collections.defaultdict(collections.defaultdict),
    "list": Gadget(list, ("ab",)),
}


@pytest.mark.parametrize("name", GADGETS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("inside", [False, True])
def test_a_pickle_that_would_call_or_make_anything_is_refused_by_name(name, protocol, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gadget = GADGETS[name]
    value = {"segments": [], "device_traces": [gadget]} if inside else gadget
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(TraceError) as refused:
        read(path)
    assert "would make or call" in refused.value.message and refused.value.exit_code == 3
    assert [p.name for p in tmp_path.iterdir()] == ["snapshot.pickle"]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00touch\x85R.", "posix.system"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x05touch\x85R.", "posix.system"),
        (b"\x80\x02(X\x05\x00\x00\x00touchios\nsystem\n.", "os.system"),
        (b"\x80\x02(cos\nsystem\nX\x05\x00\x00\x00toucho.", "os.system"),
        (b"\x80\x02ccollections\ndefaultdict\n(cbuiltins\nlist\nK\x01tR.", "REDUCE"),
        (b"\x80\x02ccollections\ndefaultdict\n(X\x04\x00\x00\x00listtR.", "REDUCE"),
        (b"\x80\x02X\x17\x00\x00\x00collections.defaultdict)R.", "REDUCE"),
        (b"\x80\x02ccollections\ndefaultdict.system\n.", "collections.defaultdict.system"),
        (b"\x80\x04\x8c\x0bcollectionsK\x01\x93.", "collections.1"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02Pid\n.", "PERSID"),
        (b"\x80\x02}}b.", "BUILD"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
    ],
)
def test_each_opcode_that_reaches_for_a_class_or_a_function_is_refused(data, named):
    with pytest.raises(TraceError, match="would make or call") as refused:
        loads(data, "x")
    assert named in refused.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04",
        b"\x80\x04.",
        b"\x80\x04]",
        b"\x80\x04\x8c\xff.",
        b"\x80\x04h\x07.",
        b"\x80\x04e.",
        b"\x80\x04K\x01K\x02s.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04}(]K\x01u.",
        b"\x80\x04\x85.",
        b"\x80\x04\x00.",
        b"\x80\x04X\xff\xff\xff\x7f.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 63) + b".",
        b"\x80\x02Nr" + struct.pack("<I", 2**31) + b".",  # the standard library takes 34 GB for this memo
        b"\x80\x04\x8b" + struct.pack("<I", 1 << 20) + bytes(1 << 20) + b".",
        b"\x80\x04" + b"(" * 1000 + b".",
    ],
)
def test_damaged_pickles_are_said_to_be_damaged(data):
    with pytest.raises(TraceError, match="damaged"):
        loads(data, "x")


def test_a_mutated_snapshot_is_read_or_refused(tmp_path):
    from tests.memory_build import trained

    data = pickle.dumps(trained(steps=1).value())
    path = tmp_path / "s.pickle"
    for position in range(0, len(data), max(len(data) // 150, 1)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x15]) + data[position + 1 :])
        try:
            read(path)
        except TraceError as error:
            assert error.message


def test_a_snapshot_is_read_gzipped_or_not_whatever_its_name(tmp_path):
    from tests.memory_build import trained

    data = pickle.dumps(trained(steps=1).value())
    for name, written in (("a.pickle", data), ("b.pickle.gz", gzip.compress(data)), ("c.bin", data)):
        (tmp_path / name).write_bytes(written)
        recording = read(tmp_path / name)
        assert recording.kind == "memory" and recording.parts[0].events > 0


@pytest.mark.parametrize("value", [{}, [1], {"segments": 3}, {"segments": [{"address": "x"}]}, 7, {"segments": [], "device_traces": []}])
def test_a_pickle_that_is_no_snapshot_is_refused(value, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(TraceError) as refused:
        read(path)
    assert refused.value.hint


def test_the_page_that_memory_viz_writes_is_refused_with_what_to_give(tmp_path):
    path = tmp_path / "trace.html"
    path.write_text("<!DOCTYPE html><html><script>import {add_local_files} from 'https://cdn.jsdelivr.net/gh/pytorch/pytorch/MemoryViz.js'")
    with pytest.raises(TraceError) as refused:
        read(path)
    assert "_dump_snapshot" in refused.value.hint
