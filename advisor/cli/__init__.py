"""The command line, its commands by theme. Only this package prints, exits or picks colours."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Collection
from functools import cache
from typing import Annotated, Any, NoReturn

import typer

from advisor.cli import arguments, completion, streams
from advisor.cli.streams import say, visible
from advisor.errors import AdvisorError, Terminated
from advisor.integrations import status
from advisor.recordings.garbage import importing

COMMANDS = {
    "analyze": ("analyze", "Report what makes the traced program slow and what to change."),
    "report": ("analyze", "Render a saved JSON report in another format."),
    "rules": ("rules", "List the rules."),
    "explain": ("rules", "Print the page of a rule, or its result for a trace."),
    "redact": ("convert", "Write a copy to give away, with the same analysis."),
    "convert": ("convert", "Write a trace in another format."),
    "merge": ("fleet", "Report on a job from the summaries of its ranks."),
    "validate": ("lab", "Compare predicted savings with measured savings."),
    "record": ("lab", "Run a PyTorch program, time its steps, then record a few."),
    "verify": ("lab", "Measure the gain of a change on this machine."),
    "bench": ("lab", "Time functions, or a function over several batch sizes."),
    "attention": ("lab", "Measure attention on this machine, and what makes it faster."),
    "diff": ("compare", "Show the changes between two traces."),
    "check": ("compare", "Check a trace against budgets; exit with 1 if any is crossed."),
    "history": ("compare", "Show step and findings from commit to commit."),
    "mcp": ("agents", "Serve traces to an agent over the Model Context Protocol."),
    "schema": ("agents", "Print the JSON Schema of `--format json`."),
    "skill": ("agents", "Print the skill for agents, or install it for an agent."),
    "init": ("init", "Write budgets, settings for agents and a GitHub workflow."),
    "try": ("trying", "Measure the gain of each fix on your own program."),
}
"""The module of each command, and the first line of its help. A command's own module is imported when the command is run or its help is printed."""


_READ_ALONE = ("analyze", "rules", "convert", "fleet", "compare")
"""Modules of commands that run no program of the user's."""


def __getattr__(name: str) -> Any:
    if name == "app":
        return _whole()
    raise AttributeError(f"module 'advisor.cli' has no attribute {name!r}")


@cache
def _whole() -> typer.Typer:
    return application(COMMANDS)


def application(wanted: Collection[str], alone: bool = False) -> typer.Typer:
    """The command line. Commands that are not wanted are there by name and first line alone, or `alone` not at all: typer takes a millisecond for each."""
    made = typer.Typer(
        help="Reads a GPU profile and reports what makes the program slow, what to change, and the gain.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_main)
    for name, (module, line) in COMMANDS.items():
        if name in wanted:
            function = getattr(importlib.import_module(f"advisor.cli.{module}"), "try_" if name == "try" else name)
            made.command(name=name)(function)
        elif not alone:
            made.command(name=name, help=line)(_unwanted)
    return made


def _unwanted() -> None: ...


def _print_version(asked: bool) -> None:
    if asked:
        from advisor.knowledge.release import release

        print(f"advisor {release()}")
        raise typer.Exit


def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)] = False,
    show_secrets: Annotated[bool, typer.Option("--show-secrets", help="Show names that look like secrets as they were recorded.")] = False,
) -> None:
    if show_secrets:
        from advisor.knowledge.secrets import SHOW

        os.environ[SHOW] = "1"  # the processes that read ranks inherit it


def _fail(error: AdvisorError) -> NoReturn:
    status.tell(error=error.message, hint=error.hint)
    say(f"advisor: {error.message}")
    if error.hint:
        print(f"  {visible(error.hint, lines=True)}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def _terminated(number: int, _: object) -> NoReturn:
    raise Terminated(128 + number)  # unwinds: no half written file stays


def main() -> None:
    """Entry point: every known error becomes a message, a hint and its exit code, and so does every other one.

    1 means a finding, so a crash is 70, a broken pipe 141 and a signal 128 and its number.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _terminated)
    streams.install()
    status.begin()
    completion.complete_at_once_in_zsh()
    word = next((word for word in completion.words() if not word.startswith("-")), "")
    if COMMANDS.get(word, ("",))[0] in _READ_ALONE:  # threads for products of large matrices, which nothing here has, spin until one comes
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    atexit.register(gc.freeze)  # objects are not searched for cycles once more before the process ends
    with importing():
        app = typer.main.get_command(application((word,), alone=word in COMMANDS and sys.argv[1:2] == [word]))
    arguments.take_simple_values(app)
    try:
        try:
            code = app(prog_name="advisor", standalone_mode=False)
        finally:
            sys.stdout.flush()
    except AdvisorError as error:
        _fail(error)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except OSError as error:  # of a path that is none, wherever it is touched first
        from advisor.files import of_system

        _fail(of_system(error))
    except MemoryError:
        say("advisor: the memory does not suffice for this recording")
        raise SystemExit(70) from None
    except Exception as error:
        if show := getattr(error, "show", None):  # bad arguments: click's own errors, wherever this typer keeps them
            show()
            raise SystemExit(getattr(error, "exit_code", 2)) from None
        print("".join(traceback.format_exception(error)), file=sys.stderr)
        say("advisor: this is an error of advisor's own: please report it")
        raise SystemExit(70) from None
    raise SystemExit(code if isinstance(code, int) else 0)
