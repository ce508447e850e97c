"""Commands for programs: the MCP server, the schema of the JSON report, and the skill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.outputs import check_target, make_directory, write
from advisor.cli.streams import say
from advisor.cli.terminal import ForceOption
from advisor.errors import UsageError


def mcp(
    root: Annotated[Path, typer.Option("--root", help="The folder with the traces; nothing outside it is read.")] = Path(),
    limit_s: Annotated[float | None, typer.Option("--limit-s", help="Seconds that an answer may take before it is ended; 120 by default.")] = None,
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="Let agents run programs in the root, with your rights: record, try and verify. Without it nothing is run.")
    ] = False,
    run_limit_s: Annotated[float | None, typer.Option("--run-limit-s", help="Seconds that a run may take before it is ended; 3600 by default.")] = None,
) -> None:
    """Serve traces to an agent over the Model Context Protocol.

    Its tools are analyze, findings, explain, kernels, diff, check, serving, record, try and verify, on standard input and output.
    """
    from advisor.integrations.mcp_runs import RUN_S
    from advisor.integrations.mcp_server import server
    from advisor.integrations.mcp_worker import ANSWER_S

    server(root, ANSWER_S if limit_s is None else limit_s, allow_run, RUN_S if run_limit_s is None else run_limit_s).run()


def schema(
    brief: Annotated[bool, typer.Option("--brief", help="Of `analyze -f json --brief` instead.")] = False,
) -> None:
    """Print the JSON Schema of `--format json`."""
    from advisor.report import schema as schemas

    print(schemas.text(schemas.brief_schema() if brief else schemas.schema()))


def skill(
    path: Annotated[bool, typer.Option("--path", help="Print the path of the skill.")] = False,
    install: Annotated[Path | None, typer.Option(help="A directory of skills, as .claude/skills: copy it there, into the folder advisor.")] = None,
    force: ForceOption = False,
) -> None:
    """Print the skill for agents, or install it for an agent.

    It says how to record, analyze, pick, change, verify and report with this advisor, and what never to claim.
    """
    from advisor.skills import ADVISOR

    if path and install:
        raise UsageError("--path prints and --install copies", "Give only --path or --install.")
    if path:
        print(ADVISOR)
    elif install:
        _install(ADVISOR, install / ADVISOR.name, force)
    else:
        print((ADVISOR / "SKILL.md").read_text(encoding="utf-8"), end="")


def _install(skill: Path, into: Path, force: bool) -> None:
    """Copy the skill's pages. Raises UsageError before anything is written where a file that is not advisor's stands in the way."""
    pages = {into / page.relative_to(skill): page.read_text(encoding="utf-8") for page in sorted(skill.rglob("*.md"))}
    for folder in dict.fromkeys(page.parent for page in pages):
        make_directory(folder)
    for target in pages:
        check_target(target, force, "", "--install")
    for target, text in pages.items():
        write(text, target, quiet=True)
    say(f"wrote {len(pages)} files to {into}")
