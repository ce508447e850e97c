"""Commands for programs: the MCP server, and the schema of the JSON report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    root: Annotated[Path, typer.Option("--root", help="The folder whose traces may be read; nothing outside of it is.")] = Path(),
    limit_s: Annotated[float | None, typer.Option("--limit-s", help="Seconds that an answer may take before it is ended; 120 by default.")] = None,
) -> None:
    """Serve traces to an agent over the Model Context Protocol.

    Its tools are analyze, findings, explain, kernels and diff, on standard input and output.
    """
    from advisor.integrations.mcp_server import server
    from advisor.integrations.mcp_worker import ANSWER_S

    server(root, ANSWER_S if limit_s is None else limit_s).run()


def schema(
    brief: Annotated[bool, typer.Option("--brief", help="Of `analyze -f json --brief` instead.")] = False,
) -> None:
    """Print the JSON Schema of `--format json`."""
    from advisor.report import schema as schemas

    print(schemas.text(schemas.brief_schema() if brief else schemas.schema()))
