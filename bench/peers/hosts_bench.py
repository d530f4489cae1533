"""A script on one host, and actors on others, which `bench/hosts.py` runs for each peer. It uses public names that both peers have.

    hosts_bench.py PEER BENCHES WORKER...        the client; BENCHES is a comma list of attach,rtt,cast,bandwidth
    hosts_bench.py worker ADDRESS                a worker, of peers whose worker is a function call

Trust comes from BENCH_TRUST: `insecure`, `ca`, or the file with a secret.
"""

import asyncio
import os
import sys

from measuring import MIB, Report, asample, cpu_seconds, now, reps, sample, size_name

PROCS = 8
SIZES = (MIB, 64 * MIB, 256 * MIB)


def host_cpu():
    """Processor seconds of all processes of this host, which sees no others."""
    total = 0.0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                total += cpu_seconds(name)
            except OSError:
                pass
    return total


def trust():
    kind = os.environ["BENCH_TRUST"]
    return {"insecure": {"insecure": True}, "ca": {"ca": "trust_all_connections"}}.get(kind, {"secret": kind})


def worker(address):
    from monarch.actor import run_worker_loop_forever

    run_worker_loop_forever(address=address, **trust())


def attach(report, workers):
    from monarch.actor import attach_to_workers

    start = now()
    hosts = attach_to_workers(workers=workers, **trust())
    hosts.initialized.get()
    report.times(f"attach/{len(workers)}", [now() - start], "ms")
    return hosts


def actors(hosts, per_host):
    from monarch.actor import Actor, endpoint

    class Echo(Actor):
        @endpoint
        def echo(self, x):
            return x

        @endpoint
        def length(self, x):
            return len(x)

        @endpoint
        def cpu(self):
            return host_cpu()

    return hosts.spawn_procs({"procs": per_host}).spawn("echo", Echo)


def rtt(report, hosts):
    one = actors(hosts, 1).slice(hosts=0, procs=0)
    report.times("rtt", sample(lambda: one.echo.call_one(1).get(), 5000, 200, 3.0))

    async def loop():
        async def call():
            await one.echo.call_one(1)

        return await asample(call, 5000, 200, 3.0)

    report.times("rtt_await", asyncio.run(loop()))


def cast(report, hosts):
    every = actors(hosts, PROCS)
    ranks = PROCS * hosts.sizes["hosts"] if hasattr(hosts, "sizes") else PROCS * len(hosts)
    report.times(f"cast_and_collect/{ranks}", sample(lambda: every.echo.call(1).get(), 2000, 20, 3.0))
    count = 2000
    start = now()
    for _ in range(count):
        every.echo.broadcast(1)
    every.echo.call(1).get()
    report.value(f"broadcast/{ranks}", count / (now() - start), "casts/s", count)


def bandwidth(report, hosts):
    one = actors(hosts, 1).slice(hosts=0, procs=0)
    for size in SIZES:
        data = os.urandom(MIB) * (size // MIB)
        for _ in range(2):
            one.length.call_one(data).get()
        before = host_cpu() + one.cpu.call_one().get()
        times = sample(lambda: one.length.call_one(data).get(), reps(size, 200), 0, 5.0)
        used = host_cpu() + one.cpu.call_one().get() - before
        report.bandwidth(f"oneway_bytes/{size_name(size)}", size, times)
        # The time is of a processor of either host; other users of it do not change it much.
        report.value(f"oneway_bytes_cpu/{size_name(size)}", used / (size * len(times) / 1e9), "s/GB", len(times))


def main():
    if sys.argv[1] == "worker":
        return worker(sys.argv[2])
    peer, benches, *workers = sys.argv[1:]
    report = Report(peer)
    from monarch.actor import enable_transport

    if peer == "torchmonarch":
        enable_transport("tcp")
    hosts = attach(report, workers)
    for bench in benches.split(","):
        if bench != "attach":
            globals()[bench](report, hosts)
    sys.stdout.flush()
    # The processes on the hosts end with them.
    os._exit(0)


if __name__ == "__main__":
    main()
