"""Faults of real processes, found by a client of `monarch mcp` that asks for the status, and for one canned query or a few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.telemetry._queries.catalog import load

# On a busy machine; a pair of waiting actors is a deadlock after ten seconds.
pytestmark = pytest.mark.timeout(180)
PROGRAM = Path(__file__).parents[1] / "support" / "faulty_job.py"
MCP = "import sys; from monarch._core.cli import main; sys.argv[1:] = ['mcp']; main()"
# The names in the answer of the canned query of each fault.
FAULTS = {
    "first_cause": ("dying", "signal 9"),
    "straggler": ("trainer\t2\t",),
    "queue_growth": ("reader\t0\t",),
    "crash_loop": ("crasher\t0\t", "no such device"),
    "log_burst": ("procs[0]\tstdout\t1500", "retry 0"),
    "lost_host": ("agent killed",),
    # The last two take a while: memory that grows by half, and a pair of actors that waits for ten seconds.
    "memory_growth": ("leaking[0]",),
    "deadlock": ("left>\thold\tgive", "right>\thold\tgive"),
}
LATE = {"straggler", "queue_growth", "memory_growth", "deadlock"}
_MOST_BYTES = 8000
_MINUTE = "running_us > 60000000"


def test_nine_faults_of_a_real_job_are_found(tmp_path: Path) -> None:
    anyio: Any = pytest.importorskip("anyio")
    pytest.importorskip("mcp")
    from mcp import ClientSession, StdioServerParameters, stdio_client

    # Memory is measured often: otherwise each of six measurements of its growth takes ten seconds.
    environment = {**os.environ, "MONARCH_HOME": str(tmp_path / "home"), "MONARCH_PROCESS_MEMORY_METRIC_INTERVAL": "300ms"}
    errors = tmp_path / "errors"

    async def look(url: str) -> None:
        server = StdioServerParameters(command=sys.executable, args=["-c", MCP], env={**environment, "MONARCH_ADMIN_URL": url})
        with errors.open("w") as log:
            async with stdio_client(server, errlog=log) as streams, ClientSession(*streams) as client:
                await client.initialize()

                async def asked(tool: str, **arguments: object) -> str:
                    done = await client.call_tool(tool, arguments)
                    text: str = done.content[0].text
                    assert not done.is_error, text
                    return text

                status = await asked("status")
                assert "lost\t1" in status
                for name, expected in FAULTS.items():
                    # Queries for slow faults are repeated.
                    text = await asked("diagnose", name=name)
                    while not all(one in text for one in expected):
                        assert name in LATE, f"{name} does not find {expected}\n{status}\n{text}"
                        await anyio.sleep(0.3)  # sleeps: between two looks
                        text = await asked("diagnose", name=name)
                    assert len((status + text).encode()) < _MOST_BYTES
                # The same as the canned query, except for the minute.
                stuck = load().query("stuck_endpoint").sql
                assert _MINUTE in stuck
                text = await asked("run_query", sql=stuck.replace(_MINUTE, "running_us > 1000000"))
                assert "reader\t0\t" in text and "\tread\t" in text, text
                assert len((status + text).encode()) < _MOST_BYTES

    output = tmp_path / "output"
    with (
        output.open("w") as log,
        subprocess.Popen([sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment) as job,
    ):
        assert job.stdout is not None
        try:
            found = job.stdout.readline()
            assert found.startswith(b"{"), found.decode() + output.read_text()
            anyio.run(look, json.loads(found)["url"])
        finally:
            job.kill()
