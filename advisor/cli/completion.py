"""Completion in a shell."""

from __future__ import annotations

import os
import sys


def words() -> list[str]:
    """What stands on the command line, or on the one that a shell asks to complete."""
    if "_ADVISOR_COMPLETE" in os.environ:
        return (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")).split()[1:]
    return sys.argv[1:]


def complete_at_once_in_zsh() -> None:
    """zsh loads a completion when Tab is first pressed. The script that typer installs then only says who completes, so that this Tab
    does nothing; ours goes on to complete."""
    from typer import _completion_shared as shared

    scripts: dict[str, str] = getattr(shared, "_completion_scripts", {})
    if "zsh" in scripts and "loadautofunc" not in scripts["zsh"]:
        scripts["zsh"] += 'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then %(complete_func)s "$@"; fi\n'
