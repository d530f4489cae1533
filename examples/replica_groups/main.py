"""Replica groups: training that continues while one of its groups is gone, and takes it in again.

    python main.py [--groups N] [--ranks N] [--steps N] [--workers ADDRESS... --secret FILE [--lose-host]]

Each group is a whole copy of the training, on processes of its own. A lost process ends its group and no other. The present groups average
their gradients at every step. At step 20 this script kills a process of group 1: Monarch reports the death, the others leave the quorum,
repeat the step without it and continue. When group 1 is back, it copies parameters and the optimizer's state from another group. With
`--lose-host` the script kills all processes of the host of group 1, and the others train on without that host.

Prints the time from the kill to the next step. Exits with 1 if the group did not come back, or if groups end with other parameters. Needs
torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from controller import Controller

from monarch.actor import attach_to_workers, this_proc

KILLED, KILL_AT = 1, 20


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small transformer on replica groups, and lose one on the way.")
    parser.add_argument("--groups", type=int, default=3, help="each on processes of its own (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="of each group (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="at least; training ends when all groups are there (default: %(default)s)")
    parser.add_argument("--workers", nargs="*", help="hosts of the groups, in turns: addresses of `monarch worker` (default: this machine)")
    parser.add_argument("--secret", help="the file with the secret of the workers")
    parser.add_argument("--lose-host", action="store_true", help="lose the host of a group: all of its processes, and the worker")
    options = parser.parse_args()
    if options.groups < 2:
        parser.error("--groups: one is lost, and another one goes on")
    if options.lose_host and len(options.workers or ()) < options.groups:
        parser.error("--lose-host: needs --workers, a host for each group")
    # Processes inherit the environment. Each is one of several on this machine, so each uses one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    hosts = attach_to_workers(workers=options.workers, secret=options.secret) if options.workers else None
    controller = this_proc().spawn("controller", Controller, options.groups, options.ranks, hosts)
    training = controller.train.call_one(options.steps)
    controller.reached.call_one(KILL_AT).get()
    print(f"SIGKILL to {'the host' if options.lose_host else f'rank {options.ranks - 1}'} of group {KILLED}", flush=True)
    killed = time.monotonic()
    controller.kill.call_one(KILLED, options.ranks - 1, options.lose_host).get()

    digests = training.get()
    steps = controller.reached.call_one(0).get()
    for step in steps:
        if step.number == 1 or step.number % 20 == 0:
            print(f"step {step.number:3}: loss {step.loss:.3f}, groups in the quorum: {len(step.groups)}")
    without = next(step for step in steps if step.done > killed and KILLED not in step.groups)
    print(f"from the kill to the next step without the group: {1000 * (without.done - killed):.0f} ms, of which a step takes ", end="")
    took = sorted(later.done - earlier.done for earlier, later in zip(steps, steps[1:], strict=False))
    print(f"{1000 * took[len(took) // 2]:.0f} ms")
    if hosts is not None:
        hosts.shutdown().get()
    good = len(digests) == options.groups - options.lose_host and len(set(digests)) == 1 and steps[-1].loss < steps[0].loss
    print(f"{steps[-1].number} steps, parameters {', '.join(digests)}")
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
