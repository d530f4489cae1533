"""`monarch mcp`: the tools by the Model Context Protocol, over stdin and stdout, with the library `mcp`."""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from monarch.telemetry._agents.compact import shown
from monarch.telemetry._agents.tools import GUIDE, Tool, Tools
from monarch.telemetry.errors import TelemetryError


def serve(tools: Tools) -> None:
    """Answers the client at stdin and stdout until it closes them. `TelemetryError` where the library is not installed."""
    try:
        anyio: Any = import_module("anyio")
        stdio: Any = import_module("mcp.server.stdio")
    except ModuleNotFoundError as error:
        raise TelemetryError(
            f"the interface of agents needs the library mcp, and {error.name} is not installed",
            hint="pip install 'monarch-telemetry[mcp]'",
        ) from None
    server = made(tools)

    async def run() -> None:
        async with stdio.stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def made(tools: Tools) -> Any:
    """The `mcp.server.Server` of these tools, for another transport or for tests."""
    anyio_threads: Any = import_module("anyio.to_thread")
    types: Any = import_module("mcp_types")
    server: Any = import_module("mcp.server.lowlevel.server")

    async def listed(_context: Any, _parameters: Any) -> Any:
        return types.ListToolsResult(tools=[_described(types, tool) for tool in tools.tools.values()])

    async def called(_context: Any, parameters: Any) -> Any:
        # Questions wait for hosts: other calls are served in the meantime.
        call = functools.partial(_called, tools, parameters.name, dict(parameters.arguments or {}))
        text, failed = await anyio_threads.run_sync(call, abandon_on_cancel=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return server.Server("monarch", version=_version(), instructions=GUIDE, on_list_tools=listed, on_call_tool=called)


def _called(tools: Tools, name: str, arguments: dict[str, object]) -> tuple[str, bool]:
    from monarch.actor import MonarchError

    try:
        return tools.call(name, arguments), False
    except (MonarchError, OSError) as error:
        return shown(str(error)) or type(error).__name__, True
    except Exception as error:
        # A defect of the server: the agent gets the error, and the server continues.
        return shown(f"{type(error).__name__}: {error}"), True


def _described(types: Any, tool: Tool) -> Any:
    hints = types.ToolAnnotations(read_only_hint=not tool.acts, destructive_hint=tool.acts, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.what, input_schema=tool.schema, annotations=hints)


def _version() -> str:
    try:
        return version("monarch-telemetry")
    except PackageNotFoundError:
        return "0"
