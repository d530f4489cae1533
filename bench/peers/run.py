#!/usr/bin/env python3
"""Run benchmark scripts of several peers, interleaved, so that their ratios are of the same minutes.

    run.py --out results.jsonl --rounds 3 --peer NAME=PYTHON:SCRIPT[:ARG...] ... [--bench GROUP ...]

For each round and each group of benches, every peer in turn runs that group in a process
of its own, inside fresh namespaces with loopback only.  Their JSON lines are appended to --out
with "round" (counted on from what is there) and "group"; stderr goes to --out with the suffix .err.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import time

from measuring import isolated

HERE = pathlib.Path(__file__).resolve().parent
GROUPS = ("startup", "spawn", "spawn_actors", "rtt", "throughput", "mesh", "payload", "bulk", "failure", "footprint")


def run_group(python, script, args, group, timeout, err):
    argv = isolated([python, str(HERE / script), *args, "--bench", group])
    env = {**os.environ, "HOME": "/tmp/bench-home", "PYTHONDONTWRITEBYTECODE": ""}
    os.makedirs(env["HOME"], exist_ok=True)
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True,
                         env=env, start_new_session=True)
    try:
        out, _ = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)  # unshare dies, and its pid namespace with it
        out, _ = p.communicate()
        print(f"   timed out after {timeout} s", flush=True)
    return [json.loads(l) for l in out.splitlines() if l.startswith("{")], p.returncode


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--peer", action="append", required=True, metavar="NAME=PYTHON:SCRIPT[:ARG...]")
    ap.add_argument("--bench", action="append", choices=GROUPS)
    ap.add_argument("--timeout", type=float, default=240)
    a = ap.parse_args()
    peers = []
    for spec in a.peer:
        name, rest = spec.split("=", 1)
        python, script, *args = rest.split(":")
        known = subprocess.run([python, str(HERE / script), *args, "--list"], stdout=subprocess.PIPE, text=True,
                               check=True).stdout.split()
        peers.append((name, python, script, args + ["--peer", name], known))
    first = 0
    if os.path.exists(a.out):
        first = 1 + max((json.loads(l)["round"] for l in open(a.out)), default=-1)
    with open(a.out, "a") as out, open(a.out + ".err", "a") as err:
        for rnd in range(first, first + a.rounds):
            for group in a.bench or GROUPS:
                for name, python, script, args, known in peers:
                    if group not in known:
                        continue
                    t = time.monotonic()
                    lines, rc = run_group(python, script, args, group, a.timeout, err)
                    for l in lines:
                        out.write(json.dumps({**l, "group": group, "round": rnd}) + "\n")
                    out.flush()
                    print(f"round {rnd} {group} {name}: {len(lines)} results, rc {rc}, "
                          f"{time.monotonic() - t:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
