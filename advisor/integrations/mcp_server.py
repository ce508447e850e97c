"""The tools over the Model Context Protocol, on standard input and output, by the official SDK (extra `mcp`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import AdvisorError, UsageError
from advisor.integrations.mcp_tools import DATA, tools_of

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def server(root: Path) -> MCPServer:
    """A server of the tools. Raises UsageError where the SDK is not installed."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise UsageError(
            "the Model Context Protocol's SDK is not installed", "Install version 2 or later with advisor: pip install '.[mcp]' in its checkout"
        ) from None
    made = MCPServer(
        "advisor",
        instructions=f"Reads GPU profiles: what makes the program slow, what to change, what that gains. Begin with analyze. {DATA}",
    )

    def told(tool: Callable[..., str]) -> Callable[..., str]:
        """The same tool, whose known errors are answers that the agent can act on."""

        @wraps(tool)
        def call(*given: object, **named: object) -> str:
            try:
                return tool(*given, **named)
            except AdvisorError as error:
                raise ToolError(f"{error.message}. {error.hint}") from None

        return call

    for tool in map(told, tools_of(root)):
        made.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))(tool)
    return made
