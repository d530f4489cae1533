"""A bad link of a real job: connections of one host break again and again, and a client of `monarch mcp` finds which one it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.netns.cluster import Cluster, Worker

# On a busy machine: collectors of three hosts start.
pytestmark = pytest.mark.timeout(180)
_MOST_BYTES = 8000

PROGRAM = """
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters, stdio_client
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, attach_to_workers, endpoint

MCP = "import sys; from monarch._core.cli import main; sys.argv[1:] = ['mcp']; main()"
monarch.actor.unhandled_fault_hook = lambda failure: None

class Echo(Actor):
    @endpoint
    def echo(self, n: int) -> int:
        return n

async def look(url):
    server = StdioServerParameters(command=sys.executable, args=["-c", MCP], env={**os.environ, "MONARCH_ADMIN_URL": url})
    async with stdio_client(server, errlog=sys.stderr) as streams, ClientSession(*streams) as client:
        await client.initialize()

        async def asked(tool, **arguments):
            done = await client.call_tool(tool, arguments)
            return done.content[0].text

        status = await asked("status")
        return {"status": status, "text": await asked("diagnose", name="slow_link")}

hosts = attach_to_workers(workers=sys.argv[1:], secret=os.environ["TEST_SECRET"])
running = telemetry.start(hosts=hosts, serve=True, admin_addr="127.0.0.1:0", snapshot_interval_secs=0.5)
echo = hosts.spawn_procs(name="procs").spawn("echo", Echo)
assert len(echo.echo.call(1).get()) == len(sys.argv) - 1
made = f"SELECT max(reconnects) AS n FROM links WHERE to_host = '{os.environ['BAD']}'"
for times in range(1, 5):
    print("reset", flush=True)
    while (telemetry.query(made).to_pylist()[0]["n"] or 0) < times:  # polls: agents tell of a connection when they have made it again
        continue
print(json.dumps(asyncio.run(look(running.url))), flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_host_behind_a_bad_link_is_found(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    home = {"MONARCH_HOME": str(tmp_path / "home")}
    script = tmp_path / "client.py"
    script.write_text(PROGRAM)
    with Cluster(2, tmp_path, "", **home) as cluster, (tmp_path / "errors").open("w") as errors:
        bad = cluster.hosts[-1]
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        addresses = (worker.address for worker in cluster.workers)
        client = cluster.client_host.popen(
            *(sys.executable, str(script), *addresses),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**cluster.env, "BAD": bad.name},
        )
        try:
            assert client.stdout is not None
            for _ in range(4):
                line = client.stdout.readline()
                assert line == "reset\n", line + (tmp_path / "errors").read_text()
                bad.reset()
            found = json.loads(client.stdout.readline())
            rows = [line.split("\t") for line in found["text"].splitlines() if "\ttcp\t" in line]
            # The number of restored connections follows the round trip, which has any length on a busy machine.
            again = [row[:2] for row in rows if int(row[6]) >= 3]
            assert again and all(bad.name in ends for ends in again), found["text"]
            assert len((found["status"] + found["text"]).encode()) < _MOST_BYTES
        finally:
            client.kill()
            client.communicate()
