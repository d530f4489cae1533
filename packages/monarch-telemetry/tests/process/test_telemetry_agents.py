"""Real processes: an agent's client at the stdin of `monarch mcp`, and a reader of `monarch query` that has enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "agent_program.py"


def with_client(arguments: tuple[str, ...], scene: Callable[[Any], Awaitable[None]], errors: Path) -> None:
    """Runs the scene with an initialized session of the official client."""
    anyio: Any = pytest.importorskip("anyio")
    pytest.importorskip("mcp")
    from mcp import ClientSession, StdioServerParameters, stdio_client

    server = StdioServerParameters(command=sys.executable, args=[str(PROGRAM), *arguments], env=dict(os.environ))

    async def run() -> None:
        with errors.open("w") as log, anyio.fail_after(60):
            async with stdio_client(server, errlog=log) as streams, ClientSession(*streams) as client:
                started = await client.initialize()
                assert started.server_info.name == "monarch" and "run_query" in (started.instructions or "")
                await scene(client)

    anyio.run(run)


async def called(client: Any, name: str, /, **arguments: object) -> tuple[str, bool]:
    """The text of an answer, and whether it is an error."""
    done = await client.call_tool(name, arguments)
    return done.content[0].text, bool(done.is_error)


def test_agent_finds_a_fault(tmp_path: Path) -> None:
    async def scene(client: Any) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["list_tables", "describe_table", "run_query", "diagnose", "status", "stacks", "logs"]
        assert all(tool.annotations.read_only_hint and tool.input_schema["additionalProperties"] is False for tool in listed)
        size = 0
        text, failed = await called(client, "status")
        assert not failed and "ready\t4" in text
        size += len(text.encode())
        found: list[str] = []
        names, failed = await called(client, "diagnose")
        causes, _, listing = names.partition("\ncanned diagnoses, by name:\n")
        assert not failed and causes.startswith("1  ") and "a cycle of 2" in causes.splitlines()[0]
        for name in [line.split()[0] for line in listing.splitlines()]:
            text, failed = await called(client, "diagnose", name=name)
            assert not failed
            if "no rows" not in text:
                found.append(name)
                size += len(text.encode())
        assert found == ["deadlock"] and size < 8000

    with_client(("deadlock", "mcp"), scene, tmp_path / "errors")


def test_answers_of_a_session_have_pages_and_errors(tmp_path: Path) -> None:
    async def scene(client: Any) -> None:
        text, failed = await called(client, "run_query", sql="SELECT * FROM logs ORDER BY timestamp_us, seq, rank", max_rows=100_000)
        rows = text.splitlines()[3:]
        while "; next: cursor" in text:
            assert not failed and len(text.encode()) <= 50_000
            text, failed = await called(client, "run_query", cursor=text.split('cursor "')[1].split('"')[0])
            rows += text.splitlines()[3:]
        assert len(rows) == 5400 and len(set(rows)) == 5400
        text, failed = await called(client, "run_query", sql="SELECT nothing FROM logs")
        assert failed and text.startswith("line 1, column 8: there is no column 'nothing'")
        text, failed = await called(client, "run_query", sql="COPY logs TO 'x.csv'")
        assert failed and "read-only" in text
        text, failed = await called(client, "run_query", sql=7)
        assert failed and "'sql' of run_query is not a text" in text
        text, failed = await called(client, "kill_job", target="j")
        assert failed and "--allow-actions" in text
        # The server continues after each of them.
        assert (await called(client, "run_query", sql="SELECT 1 AS one"))[0].splitlines()[1:] == ["1 row", "one", "1"]

    with_client(("log_burst", "mcp"), scene, tmp_path / "errors")


def test_actions_are_tools_when_they_are_allowed(tmp_path: Path) -> None:
    async def scene(client: Any) -> None:
        acting = {tool.name: tool for tool in (await client.list_tools()).tools if tool.annotations.destructive_hint}
        assert "kill_proc" in acting and acting["signal_proc"].input_schema["required"] == ["target", "signal"]
        assert await called(client, "signal_proc", target="21", signal="SIGUSR1") == (
            "done: signal_proc 21 {'signal': 'SIGUSR1'}",
            False,
        )

    with_client(("log_burst", "mcp", "--allow-actions"), scene, tmp_path / "errors")
    assert "acting" in (tmp_path / "errors").read_text()


def test_server_ends_with_its_client() -> None:
    pytest.importorskip("mcp")
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    first["params"] = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "script", "version": "1"}}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "deadlock", "mcp"],
        input=json.dumps(first) + "\nno json\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and answers[0]["result"]["serverInfo"]["name"] == "monarch"


def test_closed_reader_ends_a_query_silently() -> None:
    command = [sys.executable, str(PROGRAM), "log_burst", "query", "SELECT * FROM logs", "--format", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["pid"] > 0
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 0
