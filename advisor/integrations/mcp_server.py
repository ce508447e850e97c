"""The tools over the Model Context Protocol, on standard input and output, by the official SDK (extra `mcp`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError, no_such, require
from advisor.integrations.mcp_tools import DATA, check_arguments, check_paths, tools_of
from advisor.integrations.mcp_worker import ANSWER_S, Answers
from advisor.knowledge.release import release

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def server(root: Path, limit_s: float = ANSWER_S) -> MCPServer:
    """A server of the tools, each answer made within `limit_s`. Raises UsageError if the SDK is not installed."""
    require("mcp.server.mcpserver", extra="mcp")  # of version 2: an earlier one has no such module
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import Tool, ToolAnnotations

    tools = {tool.__name__: tool for tool in tools_of(root)}
    answers = Answers(root, limit_s)

    class Server(MCPServer):
        """One that says plainly what is amiss with a call, before anything is read."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                if name not in tools:
                    raise no_such("tool", name, tools)
                check_arguments(tools[name], arguments)
                check_paths(root, arguments)
            except AdvisorError as error:
                raise ToolError(f"{error.message}. {error.hint}") from None
            return await super().call_tool(name, arguments, context)

        async def list_tools(self) -> list[Tool]:
            # What `check_arguments` refuses is not in the SDK's schema.
            tools = await super().list_tools()
            return [tool.model_copy(update={"input_schema": {**tool.input_schema, "additionalProperties": False}}) for tool in tools]

    made = Server(
        "advisor",
        version=release(),
        instructions=f"Reads GPU profiles: what makes the program slow, what to change, what that gains. Begin with analyze. {DATA}",
    )

    def told(tool: Callable[..., str]) -> Callable[..., str]:
        """The same tool, whose answers are made elsewhere, and whose known errors are answers that the agent can act on."""

        @wraps(tool)
        def call(**arguments: str | int) -> str:
            try:
                return answers.of(tool.__name__, arguments)
            except AdvisorError as error:
                raise ToolError(f"{error.message}. {error.hint}") from None

        return call

    for tool in map(told, tools.values()):
        made.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))(tool)
    return made
