"""A slow link of a real job: the network of one host sends little at a time, and a client of `monarch mcp` finds which one it is."""

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
# Bytes that wait in the queue of the interface are the time that answers need: a hand-shake alone has a few thousand.
_THROTTLE = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "48kbit", "burst", "2kb", "limit", "4mb")

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
        # Agents tell of a connection when they have made it again.
        slow = os.environ["SLOW"]
        def is_found(text):
            return any(slow in line.split("\\t")[:2] and "\\tup\\t" in line for line in text.splitlines())

        while not is_found(text := await asked("diagnose", name="slow_link")):
            await asyncio.sleep(0.3)
        return {"status": status, "text": text}

hosts = attach_to_workers(workers=sys.argv[1:], secret=os.environ["TEST_SECRET"])
running = telemetry.start(hosts=hosts, serve=True, admin_addr="127.0.0.1:0", snapshot_interval_secs=0.5)
echo = hosts.spawn_procs(name="procs").spawn("echo", Echo)
assert len(echo.echo.call(1).get()) == len(sys.argv) - 1
print("up", flush=True)
sys.stdin.readline()
echo.echo.call(2).get()
print(json.dumps(asyncio.run(look(running.url))), flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_the_host_behind_a_slow_link_is_found(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    home = {"MONARCH_HOME": str(tmp_path / "home")}
    script = tmp_path / "client.py"
    script.write_text(PROGRAM)
    with Cluster(2, tmp_path, "", **home) as cluster, (tmp_path / "errors").open("w") as errors:
        slow = cluster.hosts[-1]
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        addresses = (worker.address for worker in cluster.workers)
        client = cluster.client_host.popen(
            *(sys.executable, str(script), *addresses),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**cluster.env, "SLOW": slow.name},
        )
        try:
            assert client.stdin is not None and client.stdout is not None
            line = client.stdout.readline()
            assert line == "up\n", line + (tmp_path / "errors").read_text()
            slow.run(*_THROTTLE)
            # A round trip is measured while a connection is made.
            for host in cluster.hosts:
                host.reset()
            print("look", file=client.stdin, flush=True)
            found = json.loads(client.stdout.readline())
            # The slowest comes first.
            rows = [line.split("\t") for line in found["text"].splitlines() if "\tup\t" in line]
            assert slow.name in rows[0][:2], found["text"]
            assert len((found["status"] + found["text"]).encode()) < _MOST_BYTES
        finally:
            client.kill()
            client.communicate()
