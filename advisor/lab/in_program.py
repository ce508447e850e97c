"""Code that `advisor.lab.injection` starts inside a program. It waits for the import of torch, and is invisible before and after it.

A module that is loaded here, before the program's first line, would hide a file of that name next to the script. So this
module imports only modules that any Python has loaded at its start. Modules of advisor get the name of a private package."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

ASKED = "ADVISOR_IN_PROGRAM"
"""The environment variable with what to start: whether PYTHONPATH was set (1 or 0), a module of ours below `advisor`, and a text for it."""

MARK = "advisor: "
"""How each line begins that `say` prints."""

_PATH = b"PYTHONPATH"
PRIVATE = __name__.partition(".")[0]
"""The package as which ours is known inside a program."""


def begin(here: str) -> None:
    """Called as Python starts. here: the folder that is first in PYTHONPATH."""
    asked = os.environ.get(ASKED)
    if not asked:
        return
    was_set, entry, text = asked.split(" ", 2)
    _Hidden(os.fsencode(here), asked.encode(), was_set == "1").hide()

    def with_torch() -> None:
        _await_no("jax")
        _start(entry, text)

    after_import("torch", with_torch)
    after_import("jax", lambda: _start(f"{entry}_jax", text))


def after_import(name: str, then: "Callable[[], object]") -> None:
    """Call `then` once the program has imported that module for the first time. An error in it is printed and not raised."""
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(then)


def _await_no(name: str) -> None:
    """Whatever waits for that module to be imported is not called."""
    for one in sys.meta_path:
        if isinstance(one, _Finder):
            one.waiting.pop(name, None)


def say(text: str) -> None:
    """A line on the program's standard error, if there is no other way."""
    try:  # noqa: SIM105  contextlib is not loaded yet
        os.write(2, f"{MARK}{text}\n".encode(errors="replace"))
    except OSError:
        pass


def _start(entry: str, text: str) -> None:
    __import__(f"{PRIVATE}.{entry}")
    sys.modules[f"{PRIVATE}.{entry}"].install(text)


def _tried(then: "Callable[[], object]") -> None:
    try:
        then()
    except Exception as error:
        say(f"nothing is recorded here: {type(error).__name__}: {error}. The program runs on")


class _Finder:
    """The first entry of `sys.meta_path` until the awaited module was imported. It finds the same modules as the other entries."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], object]]] = {}

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        if name not in self.waiting:
            return None
        # Not every look ends in an import: importlib.util.find_spec asks too. So all is left as it is until the module was run.
        others = (one for one in sys.meta_path if one is not self)
        spec: ModuleSpec | None = next((found for one in others if (found := one.find_spec(name, path, target)) is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _call_after(spec.loader, lambda: self._imported(name))
        return spec

    def _imported(self, name: str) -> None:
        for then in self.waiting.pop(name, ()):
            _tried(then)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def _call_after(loader: "Any", then: "Callable[[], object]") -> None:
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        execute(module)
        vars(loader).pop("exec_module", None)
        then()

    # Where the module fails, Python leaves the frames of its own import system out of the traceback: this one goes with them.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>", co_name="_call_with_frames_removed")
    loader.exec_module = exec_module


class _Hidden:
    """The two environment variables that start us: out of `os.environ`, and still in the environment of every program started from here.

    What C holds as the environment keeps them, which children inherit. A child that is given an environment of its own, mostly a copy
    of `os.environ`, gets them added on the way.
    """

    def __init__(self, here: bytes, asked: bytes, was_set: bool) -> None:
        self._here = here
        self._asked = asked
        self._seen: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        found = self._removed_paths(self._seen.get(_PATH, b""))
        self._given = found if found or was_set else None

    def hide(self) -> None:
        self._seen.pop(ASKED.encode(), None)
        self._show(self._given)
        os.putenv, os.unsetenv = self._putting(os.putenv), self._taking(os.unsetenv, os.putenv)
        import _posixsubprocess

        _posixsubprocess.fork_exec = fork_exec = self._forking(_posixsubprocess.fork_exec)
        subprocess = sys.modules.get("subprocess")  # imported already where a .pth file has
        if hasattr(subprocess, "_fork_exec"):
            subprocess._fork_exec = fork_exec  # type: ignore[union-attr]
        for name in ("execve", "posix_spawn", "posix_spawnp"):
            if hasattr(os, name):
                setattr(os, name, self._starting(getattr(os, name)))

    def _show(self, path: bytes | None) -> None:
        if path is None:
            self._seen.pop(_PATH, None)
        else:
            self._seen[_PATH] = path

    def _removed_paths(self, path: bytes) -> bytes:
        return os.fsencode(os.pathsep).join(part for part in path.split(os.fsencode(os.pathsep)) if part != self._here)

    def _restored_paths(self, path: bytes | None) -> bytes:
        return self._here + os.fsencode(os.pathsep) + path if path else self._here

    def _forking(self, fork_exec: "Callable[..., int]") -> "Callable[..., int]":
        """`_posixsubprocess.fork_exec`. Its sixth argument is the environment: a list of b"NAME=value", or None for C's environment."""

        def started(*arguments: "Any") -> int:
            environment = arguments[5]
            if environment is not None and not any(one.startswith(ASKED.encode() + b"=") for one in environment):
                path = next((one.partition(b"=")[2] for one in environment if one.startswith(_PATH + b"=")), None)
                kept = [one for one in environment if not one.startswith(_PATH + b"=")]
                ours = (_PATH + b"=" + self._restored_paths(path), ASKED.encode() + b"=" + self._asking(path))
                arguments = (*arguments[:5], [*kept, *ours], *arguments[6:])
            return fork_exec(*arguments)

        return started

    def _starting(self, start: "Callable[..., Any]") -> "Callable[..., Any]":
        """A function of `os` with the environment as its third argument, as a mapping."""

        def started(path: "Any", argv: "Any", env: "Mapping[Any, Any]", *rest: "Any", **options: "Any") -> "Any":
            try:
                given = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
            except Exception:  # the error is the program's, to be raised as without us
                return start(path, argv, env, *rest, **options)
            if ASKED.encode() not in given:
                was = given.get(_PATH)
                given |= {_PATH: self._restored_paths(was), ASKED.encode(): self._asking(was)}
            return start(path, argv, given, *rest, **options)

        return started

    def _asking(self, path: bytes | None) -> bytes:
        """The variables that load advisor, to restore this PYTHONPATH."""
        return (b"0 " if path is None else b"1 ") + self._asked.partition(b" ")[2]

    def _putting(self, putenv: "Callable[[Any, Any], None]") -> "Callable[[Any, Any], None]":
        """`os.putenv`, through which `os.environ` sets C's environment: advisor's folder precedes the program's value."""

        def put(name: "Any", value: "Any", /) -> None:
            if _is_path(name):
                path = os.fsencode(value)
                putenv(ASKED, os.fsdecode(self._asking(path)))
                value = self._restored_paths(path)
            putenv(name, value)

        return put

    def _taking(self, unsetenv: "Callable[[Any], None]", putenv: "Callable[[Any, Any], None]") -> "Callable[[Any], None]":
        """`os.unsetenv`, after which we alone are there."""

        def unset(name: "Any", /) -> None:
            if _is_path(name):
                putenv(ASKED, os.fsdecode(self._asking(None)))
                putenv(name, self._restored_paths(None))
            else:
                unsetenv(name)

        return unset


def _is_path(name: "Any") -> bool:
    return name in (_PATH, _PATH.decode())
