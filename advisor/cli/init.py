"""`advisor init`: the files with which a repository holds its performance, and with which agents find advisor."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.outputs import make_directory
from advisor.cli.streams import say
from advisor.errors import OutputError, UsageError

MCP = """{
  "mcpServers": {
    "advisor": { "command": "advisor", "args": ["mcp", "--root", "."] }
  }
}
"""
BUDGETS = """# Budgets of advisor check. Set them from a report of your own program.
[budgets]
regression_percent = 5          # of the step, against a baseline
findings = { high = 0 }
"""
WORKFLOW = """name: performance
on: pull_request
permissions: {}
jobs:
  record:
    permissions: { contents: read }
    runs-on: [self-hosted, gpu]
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
        with: { persist-credentials: false }
      - run: python train.py --profile trace.json.gz        # your program; it writes a trace
      - uses: actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2
        with: { name: trace, path: trace.json.gz }
  advise:
    needs: record
    runs-on: ubuntu-latest
    permissions:
      contents: read
      pull-requests: write      # for the comment
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
        with: { persist-credentials: false }
      - uses: actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093 # v4.3.0
        with: { name: trace }
      - uses: ACTION
        with:
          trace: trace.json.gz
          config: advisor.toml
          comment: ${{ github.event.pull_request.head.repo.full_name == github.repository }}
          check: true
"""
_ACTION = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*@[0-9a-f]{40}")


def init(
    action: Annotated[str, typer.Option(help="Owner, repository and commit of this action (OWNER/NAME@SHA), for a GitHub workflow.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
) -> None:
    """Write budgets, settings for agents and a GitHub workflow.

    Each file is shown and asked for. No file is overwritten.
    """
    files = {"advisor.toml": BUDGETS, ".mcp.json": MCP}
    if action:
        if not _ACTION.fullmatch(action):
            raise UsageError(f"--action {action} names no commit of a repository", "Name a commit by its 40 digits: a tag may move.")
        files[".github/workflows/performance.yml"] = WORKFLOW.replace("ACTION", action)
    for name, text in files.items():
        if os.path.lexists(name):
            say(f"{name} exists, and stays as it is")
            continue
        if not yes:
            print(f"{name}:\n\n{text}")
            if not _agreed(name):
                continue
        make_directory(Path(name).parent)
        try:
            with open(name, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OutputError(f"{name} cannot be written: {error.strerror}", "Check the permissions of this directory.") from None
        say(f"wrote {name}")
    if not action:
        say("for a GitHub workflow, give --action OWNER/REPOSITORY@COMMIT")


def _agreed(name: str) -> bool:
    """The user's answer. Raises UsageError without an answer."""
    try:
        return input(f"Write {name}? [y/N]: ").strip().lower() in {"y", "yes"}
    except EOFError:
        raise UsageError(f"there is no answer about {name}", "Answer, or give --yes.") from None
