"""Calls, casts and large arguments between hosts, with and without encryption, beside torchmonarch 0.7.0.

    python bench/hosts.py [--rounds 3] [--bench rtt]... [--python PYTHON] [--reference PYTHON]

Hosts are network namespaces on a bridge with a worker each, the script runs on one more (`tools/netns`; needs root). The peers are Monarch
with TLS, Monarch without, and the reference over tcp, which has no encryption to turn on; `--python` and `--reference` select the packages
they use (default: this interpreter, no reference). Every round runs each bench with every peer in turn, each with workers of its own.

`attach/3` is of one worker on each of three hosts, `attach/16` of sixteen on one; both have been listening for a while. Prints a table of
the medians over the rounds with the ratio to the reference, and the cost of TLS; `--out` keeps each figure as JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from requirement import namespaces, require

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.netns import Host, Network, Process

SCRIPT = Path(__file__).resolve().parent / "peers" / "hosts_bench.py"
PORT = 22222
BENCHES = ("attach", "rtt", "cast", "bandwidth")
HOSTS = 3
MANY = 16
# Seconds between two checks whether the workers listen.
LOOK_S = 0.05
TIMEOUT_S = 180


class Peer(NamedTuple):
    name: str
    python: str
    trust: str


def listening(host: Host, ports: set[str]) -> bool:
    lines = host.run("ss", "-ltnH", stdout=subprocess.PIPE).stdout.splitlines()
    return ports <= {line.split()[3].rpartition(":")[2] for line in lines}


def run(peer: Peer, network: Network, bench: str, spread: list[Host]) -> list[dict[str, Any]]:
    """The figures of one bench, with a worker for each entry of `spread`."""
    env = {**os.environ, "BENCH_TRUST": peer.trust, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore::UserWarning"}
    # Actors are pickled by module, so the module must be found on the hosts. The reference must not see this checkout.
    ours = [] if peer.trust == "ca" else [os.environ.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), *filter(None, ours)])
    client, *_ = network.hosts
    workers: list[Process] = []
    addresses: list[str] = []
    ports: dict[str, set[str]] = {}
    for i, host in enumerate(spread):
        address = f"tcp://{host.address}:{PORT + i}"
        argv = (peer.python, str(SCRIPT), "worker", address)
        workers.append(host.popen(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env))
        addresses.append(address)
        ports.setdefault(host.name, set()).add(str(PORT + i))
    try:
        end = time.monotonic() + TIMEOUT_S
        while not all(listening(host, ports[host.name]) for host in spread):
            if time.monotonic() > end:
                raise SystemExit(f"hosts: a worker of {peer.name} does not listen")
            time.sleep(LOOK_S)
        script = client.popen(peer.python, str(SCRIPT), peer.name, bench, *addresses, stdout=subprocess.PIPE, env=env)
        try:
            out, _ = script.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            script.kill()
            out, _ = script.communicate()
            print(f"# {peer.name} {bench}: not done after {TIMEOUT_S} s", file=sys.stderr)
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    finally:
        for host in {client.name: client, **{host.name: host for host in spread}}.values():
            # With all their child processes.
            host.run("sh", "-c", "kill -9 -1", check=False, stderr=subprocess.DEVNULL)
        for worker in workers:
            worker.communicate()


def table(figures: list[dict[str, Any]], peers: list[Peer]) -> None:
    """Medians over the rounds: value, p99 of the samples, ratio to the reference."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for figure in figures:
        found.setdefault(figure["bench"], {}).setdefault(figure["peer"], []).append(figure)
    print(f"| bench | unit | {' | '.join(peer.name for peer in peers)} |\n|---|---|{'---:|' * len(peers)}")
    for bench, by_peer in found.items():
        unit = next(iter(by_peer.values()))[0]["unit"]
        base = statistics.median(f["value"] for f in by_peer["torchmonarch"]) if "torchmonarch" in by_peer else None
        cells: list[str] = []
        for peer in peers:
            if peer.name not in by_peer:
                cells.append("")
                continue
            value = statistics.median(f["value"] for f in by_peer[peer.name])
            text = f"{value:.3g}" if value < 100 else f"{value:,.0f}"
            if (p99 := by_peer[peer.name][0]["p99"]) is not None:
                p99 = statistics.median(f["p99"] for f in by_peer[peer.name])
                text += f", p99 {p99:.3g}" if p99 < 100 else f", p99 {p99:,.0f}"
            if base and peer.name != "torchmonarch":
                ratio = base / value if unit in ("us", "ms") else value / base
                text += f" ({ratio:.2g}x)"
            cells.append(text)
        print(f"| {bench} | {unit} | {' | '.join(cells)} |")
    tls, plain = ({b: statistics.median(f["value"] for f in p[n]) for b, p in found.items() if n in p} for n in ("ours", "ours insecure"))
    if "rtt" in tls and "rtt" in plain:
        print(f"\nTLS costs {tls['rtt'] - plain['rtt']:.1f} us a call, there and back")
    for bench in tls.keys() & plain.keys():
        # On a busy machine the difference can be negative.
        if bench.startswith("oneway_bytes_cpu/") and tls[bench] > plain[bench]:
            # Both sides take part of the time.
            print(f"TLS of {bench.rpartition('/')[2]}: {2 / (tls[bench] - plain[bench]):.1f} GB/s per core and side")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bench", action="append", choices=BENCHES, help="only this one; may be given again")
    parser.add_argument("--python", default=sys.executable, help="with monarch-core")
    parser.add_argument("--reference", help="with torchmonarch 0.7.0")
    parser.add_argument("--out", type=Path, help="JSON lines go here")
    options = parser.parse_args()
    require(namespaces())
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        secret = Path(made) / "secret"
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        peers = [Peer("ours", options.python, str(secret)), Peer("ours insecure", options.python, "insecure")]
        if options.reference:
            peers.append(Peer("torchmonarch", options.reference, "ca"))
        for turn in range(options.rounds):
            for bench in options.bench or BENCHES:
                for peer in peers:
                    with Network(HOSTS + 1) as network:
                        _, *hosts = network.hosts
                        start = time.monotonic()
                        got = run(peer, network, bench, hosts)
                        if bench == "attach":
                            got += run(peer, network, bench, [hosts[0]] * MANY)
                        else:
                            got = [figure for figure in got if not figure["bench"].startswith("attach/")]
                    figures += got
                    load = os.getloadavg()[0]
                    took = time.monotonic() - start
                    print(f"# round {turn} {bench} {peer.name}: {len(got)} figures, {took:.1f} s, load {load:.1f}", file=sys.stderr)
                    if options.out:
                        with options.out.open("a") as out:
                            out.writelines(json.dumps({**figure, "round": turn, "load": load}) + "\n" for figure in got)
    table(figures, peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
