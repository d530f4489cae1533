"""A value for each actor, sent in a loop of calls: torchmonarch or Ray, for `bench/per_rank.py`.

    python bench/peers/rank_values.py torchmonarch|ray PROCS MIB ROUNDS PART...

Prints a JSON object a line. Needs NumPy and the package itself; imports nothing of this checkout.
"""
import json
import os
import statistics
import sys
import time

import numpy as np

MIB = 1 << 20
SMALL_CALLS = 50


def torchmonarch(procs):
    from monarch.actor import Actor, endpoint, this_host

    class Taker(Actor):
        @endpoint
        def take(self, x):
            pass

    takers = this_host().spawn_procs(per_host={"gpus": procs}).spawn("takers", Taker)
    each = [takers.slice(gpus=rank).take for rank in range(procs)]
    return lambda values: [f.get() for f in [take.call_one(x) for take, x in zip(each, values)]]


def ray(procs):
    os.environ.update(RAY_USAGE_STATS_ENABLED="0")
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1",
             object_store_memory=4 << 30)

    @ray.remote(num_cpus=0)
    class Taker:
        def take(self, x):
            pass

    each = [Taker.remote() for _ in range(procs)]
    return lambda values: ray.get([taker.take.remote(x) for taker, x in zip(each, values)])


def main():
    name, procs, mib, rounds, parts = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5:]
    call = {"torchmonarch": torchmonarch, "ray": ray}[name](procs)
    for part in parts:
        values = [np.full(mib * MIB, i % 256, np.uint8) for i in range(procs)] if part == "large" else list(range(procs))
        calls = 1 if part == "large" else SMALL_CALLS
        for _ in range(2):
            call(values)
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(calls):
                call(values)
            times.append((time.perf_counter() - start) / calls * 1e3)
        print(json.dumps({"part": part, "median_ms": statistics.median(times)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
