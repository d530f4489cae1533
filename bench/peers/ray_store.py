"""Ray's object store, in place of memory that others copy from: one actor puts an array, another gets it and copies it into its own.

Only the group `bulk`: the other numbers of Ray are in the tables with the goals. Needs `ray` and `numpy`.
"""
import importlib.metadata
import os

import measuring

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")


def bulk(r):
    import numpy
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1",
             object_store_memory=5 * measuring.GIB)

    @ray.remote(num_cpus=0)
    class Holder:
        def fill(self, size):
            self.data = numpy.full(size, 1, numpy.uint8)

        def put(self):
            # The reference is in a list: Ray replaces a reference that is an argument or a result by its object.
            return [ray.put(self.data)]

    @ray.remote(num_cpus=0)
    class Copier:
        def reads(self, holder, size, count):
            mine = numpy.zeros(size, numpy.uint8)

            def read():
                (stored,) = ray.get(holder.put.remote())
                numpy.copyto(mine, ray.get(stored))

            seconds = measuring.sample(read, count, 1)
            assert mine[0] == mine[-1] == 1
            return seconds

    holder, copier = Holder.remote(), Copier.remote()
    for size in measuring.BULKS:
        ray.get(holder.fill.remote(size))
        seconds = ray.get(copier.reads.remote(holder, size, measuring.reps(size, 50, 2 * measuring.GIB)))
        r.bandwidth(f"bulk_read/{measuring.size_name(size)}", size, seconds)
    ray.shutdown()


if __name__ == "__main__":
    measuring.run(f"ray {importlib.metadata.version('ray')}", {"bulk": bulk})
