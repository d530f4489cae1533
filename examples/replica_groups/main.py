"""Replica groups: training that continues while one of its groups is gone, and takes it in again.

    python main.py [--groups N] [--ranks N] [--steps N]

Each group is a `run` of its own, on a slice of the hosts, with a policy of its own. A lost rank restarts its group and no other. The
present groups average their gradients at every step; an actor, the lighthouse, keeps their membership. A rank of group 1 kills itself at
step 20. The other groups repeat that step without it and continue. When group 1 is back, it copies parameters and the optimizer's state
from the memory of another group.

The hosts are processes of this machine. Exits with 1 if a group did not come back, or ends with other parameters. Needs monarch-spmd,
monarch-jobs and torch.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from lighthouse import Beacon, Lighthouse

from monarch.actor import HostMesh, this_host
from monarch.job import ProcessJob
from monarch.spmd import RestartPolicy, SPMDError, run

PROGRAM = Path(__file__).resolve().with_name("train_group.py")
KILLED = 1


async def train(hosts: HostMesh, group: int, ranks: int, beacon: Beacon, lighthouse: Lighthouse) -> int:
    """Runs a group to its end, with as many attempts as needed. Returns their number, 0 if the group was given up."""
    kill = ["--kill", str(ranks - 1), "20"] if group == KILLED else []
    running = run(
        hosts,
        ["torchrun", f"--nproc-per-node={ranks}", str(PROGRAM), f"--group={group}", *kill],
        policy=RestartPolicy(max_restarts=3, backoff=(0.1, 5.0)),
        run_id=f"group-{group}",
        env={
            "LIGHTHOUSE": beacon.host,
            "LIGHTHOUSE_PORT": str(beacon.port),
            "LIGHTHOUSE_STORE_PORT": str(beacon.store_port),
            "LIGHTHOUSE_TOKEN": beacon.token,
        },
    )
    try:
        return (await running.result).attempts
    except SPMDError as error:
        print(f"group {group} was given up: {error}")
        await lighthouse.give_up.call_one(group)
        return 0


async def train_all(hosts: HostMesh, ranks: int, steps: int) -> bool:
    groups = range(hosts.size("hosts"))
    lighthouse = this_host().spawn_procs().spawn("lighthouse", Lighthouse, len(groups), steps)
    beacon = await lighthouse.start.call_one()
    attempts = await asyncio.gather(*(train(hosts.slice(hosts=group), group, ranks, beacon, lighthouse) for group in groups))
    results = await lighthouse.results.call_one()
    for group, result in sorted(results.items()):
        print(f"group {group}: {attempts[group]} attempt(s), step {result['step']}, parameters {result['parameters']}")
    is_same = len({result["parameters"] for result in results.values()}) == 1
    return len(results) == len(groups) and is_same and attempts[KILLED] > 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small transformer on replica groups, and lose one on the way.")
    parser.add_argument("--groups", type=int, default=3, help="each on a host of its own (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="of each group (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="at least; training ends when all groups are there (default: %(default)s)")
    options = parser.parse_args()
    if options.groups < 2:
        parser.error("--groups: one is lost, and another one goes on")

    job = ProcessJob({"hosts": options.groups})
    try:
        good = asyncio.run(train_all(job.state(cached_path=None).hosts, options.ranks, options.steps))
    finally:
        job.kill()
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
