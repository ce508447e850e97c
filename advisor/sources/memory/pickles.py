"""Reads pickles with data only: numbers, text, lists, tuples, dicts, and defaultdicts of builtin types as dicts. Never runs a pickle's code.

The standard library's unpickler with a refusing `find_class` is not enough. Until Python 3.14, twelve bytes make it allocate
gigabytes (by a huge memo index), and it keeps a copy of each text that the pickle repeats. This unpickler memoizes in
order, as picklers do, refuses every opcode that makes or changes an object of any other class, and interns text."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from advisor.errors import TraceError
from advisor.recordings.garbage import uncollected
from advisor.sources.memory import rows

_NAMES = {opcode.code.encode("latin-1")[0]: opcode.name for opcode in pickletools.opcodes}
_MAX_LONG_BYTES = 16
"""Bytes of an integer: addresses and times need eight. An integer of megabytes takes minutes to build."""


_KEYS = frozenset((str, int, float, bool, bytes, type(None)))
"""Types of dict keys. Hashing a tuple walks its whole content, again for each repeated member: a few hundred bytes can take forever."""


class _Class(str):
    """The name of a class that a pickle may hold: text, never the class. No key of a dict, as its type is none of `_KEYS`."""

    __slots__ = ()


_DEFAULTDICT = _Class("collections.defaultdict")
_BUILTIN = ("dict", "float", "int", "list", "long", "set", "str", "tuple", "unicode")
_CLASSES = {str(name): name for name in (_DEFAULTDICT, *(_Class(f"{module}.{kind}") for module in ("builtins", "__builtin__") for kind in _BUILTIN))}
"""A defaultdict, which `torch.cuda` keeps annotations of graphs in, and its factories: protocol 2 has the names of Python 2."""


class _Malformed(Exception):
    """The content is no data pickle: an index or a stack that does not fit."""


class Fold(NamedTuple):
    """Replaces rows of a list by a single value: dicts with `first` as their first key. None leaves them unchanged."""

    first: str
    of_dicts: Callable[[list[dict[Any, Any]]], Any]
    """Of dicts that are appended together; they are emptied then."""
    of_columns: Callable[[int, dict[str, Any]], Any]
    """Of so many rows that the pickle spells alike, by key: an array of numbers, or `rows.Referred`."""


class _Machine:
    """A pickle being read: its bytes and position, the stack of values, the marks on it, and the memo."""

    def __init__(self, data: bytes, fold: Fold | None = None) -> None:
        self.data = data
        self.fold = fold
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.texts: dict[bytes, str] = {}
        self.declined: set[rows.Template] = set()
        self.skip = 0
        """Rows that are read singly, since there are few of them."""

    def take(self, n: int) -> bytes:
        """The next `n` bytes."""
        if n > len(self.data) - self.at:
            raise _Malformed("it ends early")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, n: int, signed: bool = False) -> int:
        """The next `n` bytes as an integer, little endian."""
        return int.from_bytes(self.take(n), "little", signed=signed)

    def text(self, n: int) -> str:
        """The next `n` bytes as text, the same object each time."""
        raw = self.take(n)
        found = self.texts.get(raw)
        if found is None:
            found = self.texts[raw] = raw.decode("utf-8", "surrogatepass")
        return found

    def since_mark(self) -> list[Any]:
        """The values above the last mark, which goes with them."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def integer(self, n: int) -> int:
        if n > _MAX_LONG_BYTES:
            raise _Malformed(f"it holds an integer of {n:,} bytes")
        return self.number(n, signed=True)


def _setitem(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    if type(m.stack[-1]) is not dict or type(key) not in _KEYS:
        raise _Malformed("it sets an item of what is no dict, or with a key that is no text or number")
    m.stack[-1][key] = value


def _appends(m: _Machine) -> None:
    items = m.since_mark()
    if type(m.stack[-1]) is not list:
        raise _Malformed("it appends to what is no list")
    if m.fold is None:
        m.stack[-1].extend(items)
        return
    for of_dicts, group in groupby(items, lambda item: type(item) is dict and m.fold is not None and m.fold.first in item):
        together = list(group)
        folded = m.fold.of_dicts(together) if of_dicts else None
        if folded is None:
            m.stack[-1].extend(together)
            continue
        m.stack[-1].append(folded)
        for item in together:
            item.clear()  # the memo keeps every dict for as long as the pickle is read


def _append(m: _Machine) -> None:
    item = m.stack.pop()
    if type(m.stack[-1]) is not list:
        raise _Malformed("it appends to what is no list")
    m.stack[-1].append(item)


def _dict(m: _Machine) -> None:
    items = m.since_mark()
    if not _KEYS.issuperset(map(type, items[::2])):
        raise _Malformed("a dict has a key that is no text or number")
    m.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


def _tuple(n: int) -> Callable[[_Machine], None]:
    def make(m: _Machine) -> None:
        if len(m.stack) < n:
            raise _Malformed("a tuple lacks its items")
        items = tuple(m.stack[-n:])
        del m.stack[-n:]
        m.stack.append(items)

    return make


def _global(m: _Machine) -> None:
    known = _known(m, pickle.GLOBAL[0], _named(m, pickle.GLOBAL[0]))
    m.at = m.data.index(b"\n", m.data.index(b"\n", m.at) + 1) + 1
    m.stack.append(known)


def _stack_global(m: _Machine) -> None:
    parts = m.stack[-2:]
    known = _known(m, pickle.STACK_GLOBAL[0], ".".join(parts) if all(type(part) is str for part in parts) else "")
    m.stack[-2:] = [known]


def _known(m: _Machine, code: int, name: str) -> _Class:
    if (known := _CLASSES.get(name)) is None:
        raise _refused(m, code)
    return known


def _reduce(m: _Machine) -> None:
    """A defaultdict of a builtin type or of none: nothing is called, it becomes an empty dict."""
    made_of, made = m.stack.pop(), m.stack.pop()
    if (
        made is not _DEFAULTDICT
        or type(made_of) is not tuple
        or len(made_of) > 1
        or any(one is _DEFAULTDICT or type(one) not in (_Class, type(None)) for one in made_of)
    ):
        raise _refused(m, pickle.REDUCE[0])
    m.stack.append({})


def _memoize(index_of: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def put(m: _Machine) -> None:
        index = index_of(m)
        if index > len(m.memo):
            raise _Malformed(f"it memoizes value {index:,} after {len(m.memo):,}")
        m.memo[index : index + 1] = [m.stack[-1]]

    return put


def _push(value_of: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value_of(m))


_OTHERS: dict[int, Callable[[_Machine], Any]] = {
    pickle.PROTO[0]: lambda m: m.take(1),
    pickle.FRAME[0]: lambda m: m.take(8),
    pickle.POP[0]: lambda m: m.stack.pop(),
    pickle.POP_MARK[0]: _Machine.since_mark,
    pickle.DUP[0]: _push(lambda m: m.stack[-1]),
    pickle.NONE[0]: _push(lambda m: None),
    pickle.NEWTRUE[0]: _push(lambda m: True),
    pickle.NEWFALSE[0]: _push(lambda m: False),
    pickle.LONG4[0]: _push(lambda m: m.integer(m.number(4))),
    pickle.BINFLOAT[0]: _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    pickle.BINUNICODE[0]: _push(lambda m: m.text(m.number(4))),
    pickle.BINUNICODE8[0]: _push(lambda m: m.text(m.number(8))),
    pickle.SHORT_BINBYTES[0]: _push(lambda m: m.take(m.number(1))),
    pickle.BINBYTES[0]: _push(lambda m: m.take(m.number(4))),
    pickle.BINBYTES8[0]: _push(lambda m: m.take(m.number(8))),
    pickle.EMPTY_LIST[0]: _push(lambda m: []),
    pickle.EMPTY_TUPLE[0]: _push(lambda m: ()),
    pickle.LIST[0]: _push(lambda m: m.since_mark()),
    pickle.TUPLE[0]: _push(lambda m: tuple(m.since_mark())),
    pickle.DICT[0]: _dict,
    pickle.TUPLE1[0]: _tuple(1),
    pickle.TUPLE2[0]: _tuple(2),
    pickle.TUPLE3[0]: _tuple(3),
    pickle.APPEND[0]: _append,
    pickle.APPENDS[0]: _appends,
    pickle.SETITEM[0]: _setitem,
    pickle.GLOBAL[0]: _global,
    pickle.STACK_GLOBAL[0]: _stack_global,
    pickle.REDUCE[0]: _reduce,
    pickle.BINPUT[0]: _memoize(lambda m: m.number(1)),
    pickle.LONG_BINPUT[0]: _memoize(lambda m: m.number(4)),
}


def loads(
    data: bytes, path: str, fold: Fold | None = None, again: str = "Write the snapshot again: torch.cuda.memory._dump_snapshot('snapshot.pickle')."
) -> Any:
    """The value in the pickle `data`, of protocol 2 to 5. `fold` may replace rows of a list by another value.
    again: how to write such a file.

    Raises TraceError if it would make or call anything but plain data (with its name), or is damaged."""
    try:
        with uncollected():
            return _run(_Machine(data, fold))
    except (_Malformed, IndexError, KeyError, TypeError, ValueError, struct.error, MemoryError) as error:
        why = f"{error}" if isinstance(error, _Malformed) else f"{type(error).__name__}: {error}"
        raise TraceError(f"{path} is a damaged pickle: {why[:120]}", again) from None


def _run(m: _Machine) -> Any:
    """Run the machine until the value is complete. The opcodes that events are made of are here, if they cost no call."""
    data, stack, marks, memo = m.data, m.stack, m.marks, m.memo
    push, memoize, texts = stack.append, memo.append, m.texts
    at = 0
    while True:
        code = data[at]
        at += 1
        if code == 0x68:  # BINGET
            push(memo[data[at]])
            at += 1
        elif code == 0x94:  # MEMOIZE
            memoize(stack[-1])
        elif code == 0x6A:  # LONG_BINGET
            push(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif code == 0x8C:  # SHORT_BINUNICODE
            end = at + 1 + data[at]
            raw = data[at + 1 : end]
            at = end
            text = texts.get(raw)
            if text is None:
                text = texts[raw] = raw.decode("utf-8", "surrogatepass")
            push(text)
        elif code == 0x28:  # MARK
            marks.append(len(stack))
        elif code == 0x7D:  # EMPTY_DICT
            end = _rows(m, at - 1) if m.fold else 0
            if end:
                at = end
            else:
                push({})
        elif code == 0x4B:  # BININT1
            push(data[at])
            at += 1
        elif code == 0x8A:  # LONG1
            end = at + 1 + data[at]
            if end - at > _MAX_LONG_BYTES:
                raise _Malformed(f"it holds an integer of {data[at]} bytes")
            push(int.from_bytes(data[at + 1 : end], "little", signed=True))
            at = end
        elif code == 0x75:  # SETITEMS
            mark = marks.pop()
            items = stack[mark:]
            del stack[mark:]
            if type(stack[-1]) is not dict or len(items) % 2 or not _KEYS.issuperset(map(type, items[::2])):
                raise _Malformed("it sets items of what is no dict, or with a key that is no text or number")
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif code == 0x4A:  # BININT
            push(int.from_bytes(data[at : at + 4], "little", signed=True))
            at += 4
        elif code == 0x4D:  # BININT2
            push(int.from_bytes(data[at : at + 2], "little"))
            at += 2
        elif code == 0x2E:  # STOP
            return stack.pop()
        else:
            handle = _OTHERS.get(code)
            m.at = at
            if handle is None:
                raise _refused(m, code)
            handle(m)
            at = m.at


def _rows(m: _Machine, at: int) -> int:
    """The end of the rows that begin at `at`, which then are a single value on the stack; 0 if the machine has to read them."""
    if m.fold is None or not m.marks or type(m.stack[m.marks[-1] - 1]) is not list:
        return 0
    if m.skip:
        m.skip -= 1
        return 0
    template = rows.template_of(m.data, at)
    if template is None or template in m.declined or not template.fields or m.memo[template.fields[0].key] != m.fold.first:
        return 0
    found = rows.read(m.data, at, template, m.memo)
    if not found.columns:
        m.skip = max(found.count - 1, 0)
        return 0
    names = [m.memo[field.key] for field in template.fields]
    value = m.fold.of_columns(found.count, dict(zip(names, found.columns, strict=True)))
    if value is None:
        m.declined.add(template)
        return 0
    m.stack.append(value)
    m.memo.extend([{}, *template.texts] * found.count)
    return found.end


def _refused(m: _Machine, code: int) -> Exception:
    """What to say of an opcode that no data needs."""
    if code not in _NAMES:
        return _Malformed(f"it holds a byte that is no opcode ({code:#x})")
    return TraceError(
        f"the pickle would make or call {_named(m, code)}; a snapshot holds only numbers, text, lists and dicts",
        "It was not opened. Do not load it with anything else either, unless you trust whoever made it. "
        "For advice record the program: advisor record -- python PROGRAM.",
    )


def _named(m: _Machine, code: int) -> str:
    """The name that an opcode asks for, else the opcode's own."""
    if code in (pickle.GLOBAL[0], pickle.INST[0]):
        module, name = [*m.data[m.at : m.at + 400].split(b"\n", 2), b"", b""][:2]
        return f"{_printable(module)}.{_printable(name)}"
    if code == pickle.STACK_GLOBAL[0] and len(m.stack) > 1:
        return ".".join(_printable(str(part).encode("utf-8", "replace")) for part in m.stack[-2:])
    return f"an object (opcode {_NAMES[code]})"


def _printable(name: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:80].decode("utf-8", "replace"))
