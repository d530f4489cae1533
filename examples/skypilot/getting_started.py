"""Counts on the nodes of a SkyPilot cluster, and takes the cluster down. `getting_started.sky.yaml` runs it inside a pod.

python getting_started.py --infra kubernetes --hosts 2 [--accelerators H100:1] [--plan]
"""

from __future__ import annotations

import argparse
import socket
from typing import Any

from monarch_skypilot import SkyPilotJob

from monarch.actor import Actor, endpoint


class Counter(Actor):
    def __init__(self) -> None:
        self._value = 0

    @endpoint
    def increment(self, by: int) -> None:
        self._value += by

    @endpoint
    def value(self) -> tuple[str, int]:
        return socket.gethostname(), self._value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infra", default="kubernetes", help="as in a task's YAML: kubernetes, aws, slurm/CLUSTER, ...")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--accelerators", help="such as H100:1; without it, nodes have no GPU")
    parser.add_argument("--plan", action="store_true", help="print the task and do nothing")
    options = parser.parse_args()
    resources: dict[str, Any] = {"infra": options.infra, "cpus": "2+"}
    if options.accelerators:
        resources["accelerators"] = options.accelerators
    job = SkyPilotJob({"workers": options.hosts}, resources=resources, idle_minutes_to_autostop=10)
    if options.plan:
        print(job.plan())
        return
    try:
        state = job.state(cached_path=None)
        counters = state.workers.spawn_procs({"procs": 2}).spawn("counter", Counter)
        for by in range(1, 4):
            counters.increment.broadcast(by)
        for point, (host, value) in counters.value.call().get():
            print(f"{point}: {value} on {host}")
    finally:
        job.kill()


if __name__ == "__main__":
    main()
