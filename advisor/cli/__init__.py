"""The command line, its commands by theme. Only this package prints, exits or picks colours."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer

from advisor.cli import agents, analyze, compare, fleet, lab, rules
from advisor.cli.terminal import complete_at_once_in_zsh
from advisor.errors import AdvisorError
from advisor.knowledge.secrets import SHOW, masked, shown

app = typer.Typer(
    help="Reads a GPU profile and says what makes the program slow, what to change, and what that gains.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for _command in (
    analyze.analyze,
    analyze.report,
    rules.rules,
    rules.explain,
    analyze.redact,
    fleet.merge,
    lab.validate,
    lab.record,
    lab.verify,
    lab.bench,
    lab.attention,
    compare.diff,
    compare.check,
    compare.history,
    agents.mcp,
    agents.schema,
):
    app.command()(_command)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    show_secrets: Annotated[bool, typer.Option("--show-secrets", help="Show names that look like secrets as they were recorded.")] = False,
) -> None:
    if show_secrets:
        os.environ[SHOW] = "1"  # the processes that read ranks inherit it
    if version:
        from importlib.metadata import version as installed

        print(f"advisor {installed('trace-advisor')}")
        raise typer.Exit


def _visible(text: str, lines: bool = False) -> str:
    from advisor.reports._clean import visible  # not before it is needed: --help costs nothing

    return visible(text if shown() else masked(text), lines=lines)


def _fail(error: AdvisorError) -> NoReturn:
    # What a trace holds may stand in a message: it must not drive a terminal, nor give a log commands.
    print(f"advisor: {_visible(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"  {_visible(error.hint, lines=True)}", file=sys.stderr)
    raise SystemExit(error.exit_code)


class _Seen:
    """Standard error on which no command to a terminal passes, whoever writes: click, a warning of Python's, a path. (Progress bars,
    which steer the cursor, write to `sys.__stderr__`.)"""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_visible(text, lines=True))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _terminated(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)  # unwinds: no half written file stays


def main() -> None:
    """Entry point: every known error becomes a message, a hint and its exit code, and so does every other one.

    1 means a finding, so a crash is 70, a broken pipe 141 and a signal 128 and its number.
    """
    signal.signal(signal.SIGTERM, _terminated)
    sys.stderr = _Seen(sys.stderr)
    complete_at_once_in_zsh()
    try:
        code = app(prog_name="advisor", standalone_mode=False)
    except AdvisorError as error:
        _fail(error)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except MemoryError:
        print("advisor: the memory does not suffice for this recording", file=sys.stderr)
        raise SystemExit(70) from None
    except Exception as error:
        if show := getattr(error, "show", None):  # bad arguments: click's own errors, wherever this typer keeps them
            show()
            raise SystemExit(getattr(error, "exit_code", 2)) from None
        print(_visible("".join(traceback.format_exception(error)), lines=True), file=sys.stderr)
        print("advisor: this is an error of advisor's own: please report it", file=sys.stderr)
        raise SystemExit(70) from None
    raise SystemExit(code if isinstance(code, int) else 0)
