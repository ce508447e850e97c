"""The command line, its commands by theme. Only this package prints, exits or picks colours."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from advisor.cli import analyze, compare, lab, rules
from advisor.errors import AdvisorError

app = typer.Typer(
    help="Reads a GPU profile and says what makes the program slow, what to change, and what that gains.",
    add_completion=False,
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
    lab.validate,
    lab.record,
    lab.verify,
    lab.bench,
    lab.attention,
    compare.diff,
    compare.check,
    compare.history,
):
    app.command()(_command)


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"advisor {installed('trace-advisor')}")
        raise typer.Exit


def _fail(error: AdvisorError) -> NoReturn:
    print(f"advisor: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def main() -> None:
    """Entry point: every known error becomes a message, a hint and its exit code."""
    try:
        app()
    except AdvisorError as error:
        _fail(error)
    except BrokenPipeError:
        # The reader of our output went away (head, less): no error of ours, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
