"""The program of a rank that publishes weights and pulls them: it evaluates the lines of a pipe, and writes their values into another one.

weights_program.py FOLDER NAME
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from weights_actors import part, whole

from monarch.actor import deadline, handle_from_bytes, this_host
from monarch.extension.program import VARIABLE, program_link
from monarch.rdma import RDMATimeoutError
from monarch.rdma.weights import Weights, program_target
from monarch.spmd import run_mesh

rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
sources, targets = {}, {}
parts = (1, count, rank)
state, into = {}, {}


def publish(name="policy", **options):
    state[name] = part(whole(0), 0, count, rank)
    sources[name] = Weights.publish(name, state[name], **options)
    return sources[name].version


def train(name="policy", version=None):
    source = sources[name]
    with source.update(version):
        new = part(whole(source.version + 1 if version is None else version), 0, count, rank)
        state[name]["matrix"][0][:] = new["matrix"][0]
        state[name]["bias"][:] = new["bias"]
    return source.version


def train_flat(steps):
    source = sources["flat"]
    for _ in range(steps):
        with source.update():
            state["flat"]["flat"][:] = source.version + 1
    return source.version


def publish_flat(size, **options):
    state["flat"] = {"flat": np.zeros(size, np.int64)}
    sources["flat"] = Weights.publish("flat", state["flat"], **options)


def attach(run_id=None, ranks=None, name="policy", dtype=None, cut=True, **options):
    """Some columns of each rank, or all of them."""
    global parts
    parts = (1, count, rank) if cut else (1, 1, 0)
    into[name] = part({key: np.zeros_like(value, dtype) for key, value in whole(0).items()}, *parts)
    targets[name] = Weights.attach(name, of=run_mesh(run_id, ranks=ranks), into=into[name], **options)
    return targets[name].nbytes


def attach_handle(handle, **options):
    """To the mesh of a handle, which is no run."""
    global parts
    parts = (1, count, rank)
    into["policy"] = part({key: np.zeros_like(value) for key, value in whole(0).items()}, *parts)
    targets["policy"] = Weights.attach("policy", of=handle_from_bytes(handle), into=into["policy"], **options)


def attach_again(times):
    """Bytes of the proc in shared memory after each time."""
    found = []
    for _ in range(times):
        targets.clear()
        gc.collect()
        attach()
        found.append(shared())
    return found


def publish_again(times):
    """Bytes of the proc in shared memory after each time."""
    found = []
    for _ in range(times):
        publish()
        close()
        found.append(shared())
    return found


def without_descriptors(call, times):
    """Mappings of the proc after each failure: this process cannot open the memory that the proc has made."""
    limit, found = resource.getrlimit(resource.RLIMIT_NOFILE), []
    for _ in range(times):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limit[1]))
        try:
            call()
        except MemoryError as e:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            assert "shared memory" in str(e)
        else:
            raise AssertionError("there was a descriptor")
        gc.collect()
        found.append(shared())
    return found


def pull(name="policy", timeout=20):
    """The version of the target, and that which all numbers are of."""
    target = targets[name]
    version = target.pull(timeout=timeout).get()
    wanted = part(whole(version), *parts)
    good = np.array_equal(into[name]["matrix"][0], wanted["matrix"][0]) and np.array_equal(into[name]["bias"], wanted["bias"])
    return version, target.version if good else None


def moved():
    """Bytes from the sources, and from other targets."""
    target = targets["policy"]
    return target.from_sources, target.from_targets


def wait(version, name="policy"):
    return targets[name].wait(version).get()


def wait_with_deadline():
    with deadline(0.2):
        return targets["policy"].wait(100).get()


def wait_while_stopped():
    """The error of a wait with a deadline, while the proc is stopped."""
    os.kill(proc(), signal.SIGSTOP)
    try:
        with deadline(0.2):
            later = targets["policy"].wait(100)
        return str(later.exception(timeout=10))
    finally:
        os.kill(proc(), signal.SIGCONT)


def publish_while_stopped(seconds):
    """The errors of `publish` and of `close`, while the proc is stopped; and the pid of the proc."""
    texts = []
    publish("closed")
    os.kill(proc(), signal.SIGSTOP)
    try:
        for call in (publish, lambda: close("closed")):
            try:
                with deadline(seconds):
                    call()
            except RDMATimeoutError as e:
                texts.append(str(e))
    finally:
        os.kill(proc(), signal.SIGCONT)
    return texts, proc()


def drop_waits(count):
    """Waits that no code has any more."""
    for version in range(count):
        targets["policy"].wait(100 + version)


def unanswered():
    """The requests of this program that have no answer."""
    return len(program_link()._waiting)


def awaited(name="policy"):
    """The least version for which a request waits; None if there is none."""
    version = sources[name].__core__._control._numbers[1] - 1
    return None if version < 0 else version


def close(name="policy"):
    sources[name].close()


def fork_and_train():
    """The error of a child that updates."""
    return fork_and(train)


def fork_and(call):
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            call()
        except RuntimeError as e:
            os.write(writing, str(e).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


def fork_and_close():
    """The error of a child that closes the source."""
    return fork_and(close)


def cut():
    """Ends the connection to the proc."""
    link = program_link()
    link._channel._socket.shutdown(socket.SHUT_RDWR)
    while link._channel is not None:  # polls: a program has no tests' modules of another wheel
        time.sleep(0.01)  # sleeps: so does it


def pull_while_stopped():
    """The errors of two pulls: the proc is stopped, and does the first one later."""
    program_target._MORE = 0.1
    texts = []
    os.kill(proc(), signal.SIGSTOP)
    try:
        for _ in range(2):
            try:
                targets["policy"].pull(timeout=0.2).get()
            except RDMATimeoutError as e:
                texts.append(str(e).splitlines()[0])
    finally:
        os.kill(proc(), signal.SIGCONT)
    return texts


def leave_child():
    """A child that outlives this process, and has its connections."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.setsid()
        signal.pause()
    return child


def shared():
    """Bytes of the proc of this rank in shared memory of the wheel."""
    return shared_of(proc())


def proc():
    """The pid of the proc of this rank, which is in the name of its socket."""
    return int(os.environ[VARIABLE].split("-")[2])


def shared_of(pid):
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:monarch-weights" in line]
    ends = [line[0].split("-") for line in lines]
    return sum(int(high, 16) - int(low, 16) for low, high in ends)


def own_actor():
    """A proc of a client of this program publishes in the job of that client."""
    from weights_actors import Generator, Trainer

    with this_host().spawn_procs({"gpus": 1}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        trainers.publish.call().get()
        generators = procs.spawn("generators", Generator)
        generators.attach.call(trainers).get()
        return generators.pull.call().get().values()


if __name__ == "__main__":
    folder, program = sys.argv[1:]
    with open(f"{folder}/{program}.{rank}.to") as commands, open(f"{folder}/{program}.{rank}.from", "w") as answers:
        for line in commands:
            try:
                answer = [eval(line), None, None]
            except Exception as e:
                answer = [None, type(e).__name__, str(e)]
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
