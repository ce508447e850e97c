"""What is fuzzed: each target makes an input from a seed, and checks what is made of it. `TARGETS` are all there are."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from advisor import sources
from advisor.compare import budgets, compare
from advisor.engine import redact_job as giveaway
from advisor.engine import settings as engine_settings
from advisor.engine.fleet import Reduced, merged
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import AdvisorError, UsageError
from advisor.recordings.recording import Recording
from advisor.report.saved import is_report, read_report
from advisor.reports import formats
from advisor.sources import kineto
from advisor.sources.columns import layout
from advisor.sources.compile_log import read_compile_logs
from advisor.sources.kineto import native
from advisor.sources.kineto.chunks import Text
from advisor.sources.kineto.events import MalformedError
from advisor.sources.kineto.threads import Threads
from advisor.sources.kineto.transpose import Piece, decode_in_c, decode_in_python, of_decoded
from advisor.sources.opened import STANDARD_INPUT, Opened
from advisor.sources.sniff import COLUMNS_MAGIC, SNIFF_BYTES, source_of
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream, zstd
from tests.fuzz import examples, mutate
from tests.fuzz.laws import error_is_clear, nothing_is_raw, recording_is_sound, report_is_sound
from tests.paths import samples
from tests.sources.kineto.compare import assert_same_piece


@dataclass(frozen=True)
class Target:
    """name: of the target. reads: the package of `advisor.sources` that it is for, or what else it is about.
    make: an input from a random number generator. check: raises where a law does not hold of it; whether it was read rather than refused.
    goal: inputs of a whole run."""

    name: str
    reads: str
    make: Callable[[random.Random], bytes]
    check: Callable[[bytes], bool]
    goal: int = 1_000_000


@cache
def scratch() -> Path:
    """A directory in memory, where there is one, for what is opened by its path."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="advisor-fuzz-", dir=memory if memory.is_dir() else None))


@contextmanager
def file_of(data: bytes, name: str = "input") -> Iterator[Path]:
    path = scratch() / f"{os.getpid()}-{name}"
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def opened(data: bytes, path: str = STANDARD_INPUT) -> Recording:
    """The recording in these bytes, from memory; a source that opens files itself gets them by `path`."""
    stream = Stream(io.BytesIO(data), len(data), DEFAULT_MAX_BYTES)
    given = Opened(path, stream, stream.peek(SNIFF_BYTES), len(data), DEFAULT_MAX_BYTES)
    if found := source_of(given.head):
        return sources.source(found).record(given)
    raise UsageError("no source knows it", "Give another.")


def reads(data: bytes, path: str = STANDARD_INPUT) -> bool:
    """A sound recording, or an error that says what to do."""
    try:
        recording_is_sound(opened(data, path))
    except AdvisorError as error:
        error_is_clear(error)
        return False
    return True


def reads_file(data: bytes) -> bool:
    with file_of(data) as path:
        return reads(data, str(path))


# --- Kineto -------------------------------------------------------------------------------------------------------------


def make_kineto(rng: random.Random) -> bytes:
    value = json.loads(rng.choice(_kineto()))
    value["traceEvents"] = rng.sample(value["traceEvents"], min(rng.randrange(1, 8), len(value["traceEvents"])))
    value = mutate.tree(rng, value)
    text = mutate.json_text(rng, value)
    return mutate.raw(rng, text) if rng.random() < 0.3 else text


@cache
def _kineto() -> list[str]:
    return [json.dumps(one) for one in examples.kineto()]


def check_columns(data: bytes) -> bool:
    """Whatever the size of the pieces that it is cut into, a list of objects in valid JSON gives the same columns, by either decoder.
    Whatever it is, four threads read the same of it."""
    whole = _columns(data, 1 << 20)
    pieces = _columns(data, (200, 700, 2500)[len(data) % 3])
    _same(pieces, _columns(data, (200, 700, 2500)[len(data) % 3], threads=3))
    try:
        found = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    events = found.get("traceEvents") if isinstance(found, dict) else found
    regular = isinstance(events, list) and all(isinstance(event, dict) for event in events)
    if regular:
        _same(whole, pieces)
    return regular


def make_piece(rng: random.Random) -> bytes:
    """A few events of the samples as they are written there, mostly with some bytes of them changed: what the decoder in C is given."""
    text = b",\n".join(rng.sample(_sampled_events(), rng.randrange(1, 6)))
    return mutate.raw(rng, text, rng.choice((1, 1, 2, 4))) if rng.random() < 0.9 else text


@cache
def _sampled_events() -> list[bytes]:
    """Some events of every sample that is JSON, as text."""
    found = []
    for path in samples("*/*.json.gz"):
        lines = [line.rstrip(b",\r\n") for line in gzip.decompress(path.read_bytes()).splitlines()]
        found += random.Random(path.parent.name).sample(lines[1:-1], min(60, len(lines) - 2))
    return [line for line in found if line.startswith(b"{") and line.endswith(b"}")]


def check_decoder(data: bytes) -> bool:
    """The decoder in C gives a piece back, or decodes it to the bit as Python does, in one thread and in four at once."""
    found = [decode_in_c(data), *_threads().map(decode_in_c, [data] * 4)]
    assert len({piece is None for piece in found}) == 1
    if found[0] is not None:
        expected = decode_in_python(data)
        for piece in found:
            assert_same_piece(piece, expected)
    return found[0] is not None


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def _refuse(_: str) -> None:
    raise ValueError("no JSON")


def _columns(data: bytes, chunk_bytes: int, threads: int = 0) -> tuple[Any, dict[str, dict[str, Any]]]:
    text = Text(Stream(io.BytesIO(data)).read, chunk_bytes)
    collected = kineto._Collected()
    seen = [False]

    def decode(piece: bytes) -> Piece:
        return _decoded(piece, native.decode(piece), seen[-1])

    with Threads(native.decode, lambda piece, decoded: _decoded(piece, decoded, seen[-1])) as several:
        several.start(threads)
        for piece in text.decoded(decode, several):
            seen.append(piece.exact)
            collected.add(piece)
            if piece.exact:
                several.close()
    tables = {name: {column: _plain(merger, column) for column in merger.names} for name, merger in sorted(collected.tables.items())}
    return (collected.events, collected.bad_durations, collected.bad_times, +collected.categories, text.bad, text.first_bad, text.end), tables


def _decoded(text: bytes, decoded: native.Decoded | None, exact: bool) -> Piece:
    """A piece, the same to the bit whichever decoder it is given to."""
    piece = of_decoded(text, decoded, exact)
    if piece.native:
        try:
            assert_same_piece(piece, decode_in_python(text))
        except MalformedError as error:
            raise AssertionError("the decoder in C takes what is no JSON") from error
    return piece


def _plain(merger: Any, column: str) -> Any:
    """A column as an array, texts as their numbers and what they stand for: no pandas, which takes longer than all the rest."""
    values = merger._parts[column].joined()
    codes = merger._codes.get(column)
    return values if codes is None else (values, list(codes))


def _same(a: tuple[Any, dict[str, dict[str, Any]]], b: tuple[Any, dict[str, dict[str, Any]]]) -> None:
    assert a[0] == b[0], (a[0], b[0])
    assert a[1].keys() == b[1].keys()
    for name, columns in a[1].items():
        for column, values in columns.items():
            other = b[1][name][column]
            if isinstance(values, tuple):
                assert values[1] == other[1] and np.array_equal(values[0], other[0]), f"{name}.{column}"
            else:
                assert np.array_equal(values, other, equal_nan=values.dtype.kind == "f"), f"{name}.{column}"


# --- the other sources --------------------------------------------------------------------------------------------------


def make_jax_chrome(rng: random.Random) -> bytes:
    text = mutate.json_text(rng, mutate.tree(rng, examples.jax_chrome()[0]))
    return mutate.raw(rng, text) if rng.random() < 0.2 else text


def make_proton_trace(rng: random.Random) -> bytes:
    text = json.dumps(mutate.tree(rng, examples.proton_trace()), separators=(",", ":")).encode("utf-8", "surrogatepass")
    text = text if rng.random() < 0.5 else text + b"\n" + text
    return mutate.raw(rng, text) if rng.random() < 0.3 else text


def make_proton_tree(rng: random.Random) -> bytes:
    value = mutate.tree(rng, examples.proton_tree())
    try:
        data = json.dumps(value).encode() if rng.random() < 0.5 else msgspec.msgpack.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError):
        data = json.dumps(examples.proton_tree()).encode()
    return mutate.raw(rng, data) if rng.random() < 0.3 else data


def make_flight(rng: random.Random) -> bytes:
    value = mutate.tree(rng, examples.flight())
    try:
        data = pickle.dumps(value, rng.choice((2, 3, 4))) if rng.random() < 0.5 else mutate.json_text(rng, value)
    except (UnicodeEncodeError, RecursionError):
        data = pickle.dumps(examples.flight(), 2)
    return mutate.raw(rng, data) if rng.random() < 0.3 else data


def make_compile_log(rng: random.Random) -> bytes:
    """Records of a log of torch.compile, changed as trees, in any order, with some bytes of the whole changed."""
    lines = []
    for said, payload in rng.sample(examples.COMPILE_LOG, rng.randrange(1, len(examples.COMPILE_LOG) + 1)):
        head = mutate.json_text(rng, mutate.tree(rng, json.loads(json.dumps(said)))) if rng.random() < 0.7 else json.dumps(said).encode()
        lines += [b"V1129 10:31:07.951000 1872 torch/_dynamo/utils.py:2350] " + head, *(b"\t" + line.encode() for line in payload.splitlines())]
    data = b"\n".join(lines) + b"\n"
    return mutate.raw(rng, data) if rng.random() < 0.5 else data


def check_compile_log(data: bytes) -> bool:
    """Sound records, or an error that says what to do."""
    with file_of(data, "compile.log") as path:
        try:
            (log,) = read_compile_logs(str(path), None)
        except AdvisorError as error:
            error_is_clear(error)
            return False
    assert all(min(one.compile_id) >= 0 and one.seconds >= 0 for one in log.compilations)
    assert all(one.file and one.line >= 0 for one in log.breaks)
    return True


@cache
def _messages(kind: str) -> list[mutate.Message]:
    data = {"xplane": examples.xplane, "memory_profile": lambda: [examples.memory_profile()]}[kind]()
    return [made for one in data if (made := mutate.message(one)) is not None]


def _changed_message(rng: random.Random, kind: str) -> bytes:
    data = mutate.encoded(mutate.fields(rng, mutate.json_copy(rng.choice(_messages(kind)))))
    return mutate.raw(rng, data) if rng.random() < 0.2 else data


def make_xplane(rng: random.Random) -> bytes:
    return _changed_message(rng, "xplane")


def make_memory_profile(rng: random.Random) -> bytes:
    return _changed_message(rng, "memory_profile")


def make_columns(rng: random.Random) -> bytes:
    """A timeline's file, unpacked and broken, half of the time with a checksum that fits."""
    data = bytearray(zstd.decompress(_columns_of(rng.randrange(1, 6))))
    at = len(COLUMNS_MAGIC) + layout._SIZES.size
    for _ in range(rng.choice((1, 2, 4, 30))):
        data[rng.randrange(at if rng.random() < 0.9 else 0, len(data))] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(at, len(data)) :]
    if rng.random() < 0.5:
        _, size, _ = layout._SIZES.unpack(data[len(COLUMNS_MAGIC) : at])
        data[len(COLUMNS_MAGIC) : at] = layout._SIZES.pack(1, size, layout._digest(bytes(data[at:])))
    return bytes(data)


@cache
def _columns_of(steps: int) -> bytes:
    text = json.dumps(examples.training(steps)).encode()
    return layout.encode(kineto.read(Stream(io.BytesIO(text)), "x"))


def make_nsys(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return mutate.raw(rng, examples.nsys())
    with file_of(examples.nsys(), "made") as path:
        mutate.rows(rng, path)
        data = path.read_bytes()
    return mutate.raw(rng, data) if rng.random() < 0.1 else data


def make_rocm_database(rng: random.Random) -> bytes:
    whole = examples.rocpd() if rng.random() < 0.6 else examples.rpd()
    if rng.random() < 0.3:
        return mutate.raw(rng, whole)
    with file_of(whole, "made") as path:
        mutate.rows(rng, path)
        return path.read_bytes()


def make_rocprof_json(rng: random.Random) -> bytes:
    text = mutate.json_text(rng, mutate.tree(rng, examples.rocprof_json()))
    return mutate.raw(rng, text) if rng.random() < 0.2 else text


def make_ncu_report(rng: random.Random) -> bytes:
    """Blocks changed as messages, their lengths right; or bytes, or packed as a `.ncu-repz`."""
    from tests.kernels import NAMES_HELD, SESSION, block, field, report, result

    first = mutate.message(result("void f<int>(float*)", {0: field(3, 5000.0), 1: field(3, 12.5), 2: field(1, "NVIDIA H200")})) or []
    second = mutate.message(result("g", {0: field(5, 7000), 1: field(3, 5.0)})) or []
    for one in (first, second):
        if rng.random() < 0.7:
            mutate.fields(rng, one)
    names = list(NAMES_HELD)
    if rng.random() < 0.3:
        names[rng.randrange(3)] = rng.choice(mutate.TEXTS).encode("utf-8", "replace").decode()
        names = names[: rng.randrange(4)]
    data = report(block(session=SESSION), block(payload=b"\x01" * 40), block([mutate.encoded(first)], names), block([mutate.encoded(second)]))
    data = mutate.raw(rng, data) if rng.random() < 0.3 else data
    return bytes(zstd.compress(data)) if rng.random() < 0.05 else data


def make_ncu_page(rng: random.Random) -> bytes:
    data = mutate.cells(rng, rng.choice(examples.ncu_pages())).encode("utf-8", "surrogatepass")
    return mutate.raw(rng, data) if rng.random() < 0.2 else data


def make_snapshot(rng: random.Random) -> bytes:
    """Some lines of the history, which are alike, now and then all of them."""
    value = json.loads(_snapshot())
    if rng.random() < 0.9:
        value["device_traces"] = [rng.sample(lines, min(rng.randrange(12), len(lines))) for lines in value["device_traces"]]
    value = mutate.tree(rng, value)
    try:
        data = pickle.dumps(value, rng.choice((2, 3, 4, 5)))
    except (UnicodeEncodeError, RecursionError):
        data = pickle.dumps(json.loads(_snapshot()))
    return mutate.raw(rng, data) if rng.random() < 0.3 else data


@cache
def _snapshot() -> str:
    return json.dumps(examples.snapshot())


def make_packed(rng: random.Random) -> bytes:
    """A trace packed with gzip or zstd, in one member or several, then damaged."""
    parts = [
        b'{"traceEvents": [',
        b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7}},' * rng.randrange(40),
        b'{"ph": "M"}]}',
    ]
    pack: Callable[[bytes], bytes] = rng.choice((lambda b: gzip.compress(b, rng.randrange(1, 9), mtime=0), lambda b: bytes(zstd.compress(b))))
    data = b"".join(map(pack, parts)) if rng.random() < 0.5 else pack(b"".join(parts))
    return mutate.raw(rng, data)


def check_packed(data: bytes) -> bool:
    """All that can be unpacked comes out, in pieces of any size alike, and never more than was allowed."""
    found = []
    for size in (1 << 20, 97):
        stream = Stream(io.BytesIO(data), len(data), 1 << 20)
        try:
            found.append((b"".join(iter(lambda: stream.read(size), b"")), bool(stream.truncated)))  # noqa: B023
        except AdvisorError as error:
            error_is_clear(error)
            return False
    assert found[0] == found[1] and len(found[0][0]) <= 1 << 20
    return True


# --- saved reports, settings, summaries ---------------------------------------------------------------------------------


def make_saved(rng: random.Random) -> bytes:
    value = mutate.tree(rng, json.loads(rng.choice(examples.saved_reports())))
    text = mutate.json_text(rng, value)
    return mutate.raw(rng, text) if rng.random() < 0.1 else text


def check_saved(data: bytes) -> bool:
    """Refused, or shown in every format, compared with itself and held against budgets."""
    with file_of(data, "report.json") as path:
        try:
            report = read_report(path)
        except AdvisorError as error:
            error_is_clear(error)
            return False
        chosen = list(formats().values())
        form = chosen[len(data) % len(chosen)]  # one of them for each input: over many, all
        shown = form.render(report)
        assert shown == form.render(report)
        nothing_is_raw(shown)
        limits = {"step_ms": 1.0, "idle_share": 0.1, "kernel_count": 10, "findings": {"high": 0}}
        assert len(budgets.check(limits, report, None)) == len(limits)
        try:
            comparison = compare([report], [report])
            from advisor.reports.comparison import formats as comparisons

            some = list(comparisons().values())
            shown = some[len(data) % len(some)].render(comparison)
            assert shown
            nothing_is_raw(shown)
        except AdvisorError as error:
            error_is_clear(error)
    return True


@cache
def _settings() -> str:
    return json.dumps(examples.settings())


def make_settings(rng: random.Random) -> bytes:
    """Options of a few rules, now and then of all."""
    value = json.loads(_settings())
    if rng.random() < 0.95:
        value["options"] = {rule: value["options"][rule] for rule in rng.sample(sorted(value["options"]), rng.randrange(1, 5))}
    value = mutate.tree(rng, value)
    text = mutate.toml(value if isinstance(value, dict) else {"x": value}).encode("utf-8", rng.choice(("surrogatepass", "replace")))
    return mutate.raw(rng, text) if rng.random() < 0.2 else text


def check_settings(data: bytes) -> bool:
    """Refused, or settings that rules can be run with."""
    with file_of(data, "advisor.toml") as path:
        try:
            found = engine_settings.load(path)
            found.check(catalog())
            if found.budgets:
                budgets.parse(found.budgets, catalog().keys(), path)
        except AdvisorError as error:
            error_is_clear(error)
            return False
    return True


def make_summaries(rng: random.Random) -> bytes:
    """Two ranks' summaries, one of them changed: its facts as JSON, its arrays, or its bytes."""
    good, other = examples.rank_summaries()
    how = rng.random()
    if how < 0.4:
        other = mutate.raw(rng, other)
    else:
        with np.load(io.BytesIO(other)) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if how < 0.75:
            facts = mutate.tree(rng, json.loads(arrays["facts"].tobytes()))
            arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        else:
            name = rng.choice(sorted(arrays))
            changed = arrays[name]
            with np.errstate(all="ignore"):
                arrays[name] = rng.choice(
                    (
                        changed[:-1],
                        changed.astype("f8") * -1e9,
                        changed.astype("i1", casting="unsafe"),
                        changed.reshape(1, -1),
                        np.array(3),
                        np.array(["x"]),
                        np.full(changed.shape, 7, changed.dtype),
                    )
                )
        out = io.BytesIO()
        np.savez(out, **arrays)
        other = out.getvalue()
    return len(good).to_bytes(8, "little") + good + other


def check_summaries(data: bytes) -> bool:
    split = 8 + int.from_bytes(data[:8], "little")
    try:
        report_is_sound(run(merged(Reduced((data[8:split], data[split:]), ()), "job"), catalog().values()))
    except AdvisorError as error:
        error_is_clear(error)
        return False
    return True


# --- the whole analysis -------------------------------------------------------------------------------------------------

ANALYSED: dict[str, Callable[[random.Random], bytes]] = {
    "kineto": lambda rng: mutate.json_text(rng, mutate.tree(rng, examples.training(rng.randrange(1, 6)), rng.choice((1, 2, 4, 30)))),
    "nsys": make_nsys, "xplane": make_xplane, "jax chrome": make_jax_chrome, "ncu report": make_ncu_report, "ncu page": make_ncu_page,
    "snapshot": make_snapshot, "memory profile": make_memory_profile,
}  # fmt: skip
"""Kinds of recording that go through the whole analysis; timelines, which most rules speak of, more often."""


def make_analysis(rng: random.Random) -> bytes:
    """Options of rules, as JSON on the first line, and a recording after it."""
    options: dict[str, dict[str, Any]] = {}
    if rng.random() < 0.2:
        chosen = rng.choice([rule for rule in catalog().values() if rule.options])
        options[chosen.id] = {rng.choice(sorted(chosen.options)): rng.choice(mutate.NUMBERS)}
    kind = rng.choice((*ANALYSED, "kineto", "kineto", "kineto"))
    return json.dumps(options).encode() + b"\n" + ANALYSED[kind](rng)


def make_numbers(rng: random.Random) -> bytes:
    """A recording that is whole but for one number."""
    how = rng.randrange(3)
    if how == 0:
        return b"{}\n" + pickle.dumps(mutate.number(rng, json.loads(_snapshot())), 4)
    return b"{}\n" + json.dumps(mutate.number(rng, examples.training(2) if how == 1 else examples.jax_chrome()[0])).encode()


def check_analysis(data: bytes) -> bool:
    """An error that says what to do, or a sound report, the same twice, that formats show."""
    said, _, body = data.partition(b"\n")
    with file_of(body, "trace") as path:
        try:
            recording = opened(body, str(path))
            recording_is_sound(recording)
            if recording.kind == "job":
                return True  # an export of several processes: `summaries` has jobs
            report = run(recording, catalog().values(), json.loads(said))
        except AdvisorError as error:
            error_is_clear(error)
            return False
        report_is_sound(report)
        shown_as = list(formats().values())
        nothing_is_raw(shown_as[len(body) % len(shown_as)].render(report))  # one of them for each input: over many, all
        if len(body) % 4 == 0:
            assert run(opened(body, str(path)), catalog().values(), json.loads(said)).to_json() == report.to_json()
    return True


def make_redacted(rng: random.Random) -> bytes:
    kind = rng.choice((*ANALYSED, "saved"))
    return make_saved(rng) if kind == "saved" else ANALYSED[kind](rng)


def check_redacted(data: bytes) -> bool:
    """Refused, or a copy that reads as soundly as what it is a copy of."""
    with file_of(data, "given") as path:
        out = path.with_name(f"{path.name}.redacted")
        try:
            giveaway.redact(path, out)
            if not is_report(out):
                recording_is_sound(opened(out.read_bytes(), str(out)))
        except AdvisorError as error:
            error_is_clear(error)
            return False
        finally:
            out.unlink(missing_ok=True)
    return True


TARGETS: tuple[Target, ...] = (
    Target("kineto", "kineto", make_kineto, check_columns),
    Target("decoder", "kineto", make_piece, check_decoder),
    Target("kineto-timeline", "kineto", make_kineto, reads, 100_000),
    Target("jax-chrome", "jax", make_jax_chrome, reads, 100_000),
    Target("xplane", "jax", make_xplane, reads, 100_000),
    Target("flight", "flight", make_flight, reads),
    Target("proton-trace", "proton", make_proton_trace, reads, 100_000),
    Target("proton-tree", "proton", make_proton_tree, reads, 100_000),
    Target("compile-log", "logs of torch.compile", make_compile_log, check_compile_log),
    Target("columns", "columns", make_columns, reads),
    Target("nsys", "nsys", make_nsys, reads_file, 100_000),
    Target("rocm-database", "rocprof", make_rocm_database, reads_file, 100_000),
    Target("rocprof-json", "rocprof", make_rocprof_json, reads, 100_000),
    Target("ncu-report", "ncu", make_ncu_report, reads),
    Target("ncu-page", "ncu", make_ncu_page, reads),
    Target("snapshot", "memory", make_snapshot, reads),
    Target("memory-profile", "memory", make_memory_profile, reads),
    Target("packed", "stream", make_packed, check_packed),
    Target("saved", "saved reports", make_saved, check_saved, 100_000),
    Target("settings", "settings", make_settings, check_settings),
    Target("summaries", "summaries of ranks", make_summaries, check_summaries, 50_000),
    Target("redact", "redaction", make_redacted, check_redacted, 100_000),
    Target("analysis", "analysis", make_analysis, check_analysis, 100_000),
    Target("numbers", "analysis", make_numbers, check_analysis, 10_000),
)
