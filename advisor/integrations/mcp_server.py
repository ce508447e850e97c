"""The tools over the Model Context Protocol, on standard input and output, by the official SDK (extra `mcp`)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from advisor.errors import AdvisorError, require, unknown_name
from advisor.integrations.mcp_answers import DATA, Recorded, Tried, Verified, schema_of
from advisor.integrations.mcp_arguments import check_arguments, check_paths
from advisor.integrations.mcp_runs import PROGRESS, RUN_S, Runs
from advisor.integrations.mcp_tools import ANSWERS, tools_of
from advisor.integrations.mcp_worker import ANSWER_S, Answers
from advisor.knowledge.release import release

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS = f"""Reads GPU profiles, and measures: what makes the program slow, what to change, what that gains. Begin with analyze.
A saving is a prediction with a range; only try, verify and diff of recordings measure one. {DATA}"""

MEASURED: dict[str, type[msgspec.Struct]] = {"record": Recorded, "try": Tried, "verify": Verified}
"""What each tool answers that runs programs."""


def server(root: Path, limit_s: float = ANSWER_S, allow_run: bool = False, run_limit_s: float = RUN_S) -> MCPServer:
    """A server of the tools, each answer made within `limit_s`, each run within `run_limit_s`. allow_run: whether programs below the root may be run.
    Raises UsageError if the SDK is not installed."""
    require("mcp.server.mcpserver", extra="mcp")  # of version 2: an earlier one has no such module
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

    reading = {tool.__name__: tool for tool in tools_of(root)}
    runs = Runs(root, allow_run, run_limit_s)
    running: dict[str, Callable[..., Awaitable[str]]] = {"record": runs.record, "try": runs.try_, "verify": runs.verify}
    tools = {**reading, **running}
    schemas = {name: schema_of(answer) for name, answer in {**ANSWERS, **MEASURED}.items()}
    answers = Answers(root, limit_s)

    class Server(MCPServer):
        """A tool that rejects a wrong call clearly before anything is read, with structured answers."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            async def progress(seconds: float, doing: str) -> None:
                await context.report_progress(seconds, None, f"{doing}, {seconds:.0f} s")

            token = PROGRESS.set(progress) if context is not None else None
            try:
                if name not in tools:
                    raise unknown_name("tool", name, tools)
                check_arguments(tools[name], arguments)
                check_paths(root, arguments)
                made: Any = await super().call_tool(name, arguments, context)
            except AdvisorError as error:
                raise ToolError(f"{error.message}. {error.hint}") from None
            finally:
                if token is not None:
                    PROGRESS.reset(token)
            text = "".join(part.text for part in made.content if isinstance(part, TextContent))
            return CallToolResult(content=made.content, structured_content=json.loads(text))

        async def list_tools(self) -> list[Tool]:
            # What `check_arguments` refuses is not in the SDK's schema, nor is what an answer holds.
            tools = await super().list_tools()
            return [
                tool.model_copy(update={"input_schema": {**tool.input_schema, "additionalProperties": False}, "output_schema": schemas[tool.name]})
                for tool in tools
            ]

    made = Server("advisor", version=release(), instructions=INSTRUCTIONS)

    def told(tool: Callable[..., str]) -> Callable[..., str]:
        """The same tool with answers made elsewhere; known errors become answers that the agent can act on."""

        @wraps(tool)
        def call(**arguments: str | int) -> str:
            try:
                return answers.answer(tool.__name__, arguments)
            except AdvisorError as error:
                raise ToolError(f"{error.message}. {error.hint}") from None

        return call

    def run(tool: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        """The same of a tool that runs programs."""

        @wraps(tool)
        async def call(**arguments: str | int) -> str:
            try:
                return await tool(**arguments)
            except AdvisorError as error:
                raise ToolError(f"{error.message}. {error.hint}") from None

        return call

    for reads in map(told, reading.values()):
        made.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))(reads)
    for name, tool in running.items():
        made.tool(name, structured_output=False, annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True))(run(tool))
    return made
