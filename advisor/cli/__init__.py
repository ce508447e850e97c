"""The command line, its commands by theme. Only this package prints, exits or picks colours."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from advisor.cli import agents, analyze, compare, convert, fleet, init, lab, rules, streams, trying
from advisor.cli.streams import say, visible
from advisor.cli.terminal import complete_at_once_in_zsh
from advisor.errors import AdvisorError, Terminated
from advisor.files import of_system
from advisor.integrations import status
from advisor.knowledge.secrets import SHOW

app = typer.Typer(
    help="Reads a GPU profile and reports what makes the program slow, what to change, and the gain.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command in (
    analyze.analyze,
    analyze.report,
    rules.rules,
    rules.explain,
    convert.redact,
    convert.convert,
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
    agents.skill,
    init.init,
):
    app.command()(_command)
app.command(name="try")(trying.try_)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    show_secrets: Annotated[bool, typer.Option("--show-secrets", help="Show names that look like secrets as they were recorded.")] = False,
) -> None:
    if show_secrets:
        os.environ[SHOW] = "1"  # the processes that read ranks inherit it
    if version:
        from advisor.knowledge.release import release

        print(f"advisor {release()}")
        raise typer.Exit


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
    complete_at_once_in_zsh()
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
