"""Weights of trainers in generators of another layout, on one host and between two; and what happens to them in failures."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from eventually import eventually
from other_hosts import other_hosts
from weights_actors import COLUMNS, ROWS, Generator, ReadyTrainer, Trainer, whole

from monarch.actor import Channel, deadline, this_host
from monarch.rdma import RDMAAccessError, RDMABuffer, RDMATimeoutError
from monarch.rdma._transfer.operation import READ
from monarch.rdma.weights import Box, Weights
from monarch.rdma.weights.operations import plan_of
from monarch.rdma.weights.planner import find_runs
from monarch.rdma.weights.words import LAST

# The procs of a test, which end with it. Without a stop they live as long as pytest.
made = []


@pytest.fixture(autouse=True)
def no_leftovers():
    yield
    stops = [procs.stop() for procs in made]
    made.clear()
    for stop in stops:
        with suppress(RuntimeError):  # the test has killed procs, or ended their hosts
            stop.get()


def procs_of(count, name, hosts=None):
    procs = (hosts or this_host()).spawn_procs({"gpus": count}, name=name)
    made.append(procs)
    return procs


def meshes(trainers=2, generators=2, hosts=None):
    return (
        procs_of(trainers, "trainers", hosts).spawn("trainers", Trainer),
        procs_of(generators, "generators").spawn("generators", Generator),
    )


def values(call):
    return call.get().values()


@pytest.mark.parametrize(("published", "taken"), [(2, 2), (2, 1), (1, 2), (1, 1)])
def test_pull_gives_the_newest_version(published, taken):
    trainers, generators = meshes(3, 2)
    assert values(trainers.publish.call(buffers=published)) == [0, 0, 0]
    needed = whole(0)["matrix"].nbytes // 2 + 8 * COLUMNS
    assert values(generators.attach.call(trainers, buffers=taken)) == [needed] * 2
    assert values(generators.version.call()) == [(None, -7)] * 2
    for step in range(4):
        assert values(generators.pull.call()) == [step] * 2
        assert values(generators.version.call()) == [(step, step)] * 2
        assert values(generators.pull.call()) == [step] * 2
        assert values(trainers.train.call()) == [step + 1] * 3


@pytest.mark.parametrize("taken", [2, 1])
def test_copies_in_columns_give_the_same_weights(taken):
    trainers, generators = meshes(3, 2)
    trainers.publish.call(columns=2).get()
    generators.attach.call(trainers, buffers=taken).get()
    for step in range(3):
        assert values(generators.pull.call()) == [step] * 2
        assert values(generators.version.call()) == [(step, step)] * 2
        trainers.train.call().get()


@pytest.mark.parametrize("published", [2, 1])
def test_trainers_on_another_host(published):
    with other_hosts() as hosts:
        trainers, generators = meshes(2, 2, hosts)
        trainers.publish.call(buffers=published).get()
        generators.attach.call(trainers).get()
        for step in range(3):
            assert values(generators.pull.call()) == [step] * 2
            assert values(generators.version.call()) == [(step, step)] * 2
            trainers.train.call().get()
        assert values(generators.wait.call(3)) == [3, 3]


def test_target_in_the_process_of_a_source():
    procs = procs_of(2, "both")
    trainers, generators = procs.spawn("trainers", Trainer), procs.spawn("generators", Generator)
    trainers.publish.call().get()
    generators.attach.call(trainers).get()
    trainers.train.call().get()
    assert values(generators.pull.call()) == [1, 1] and values(generators.version.call()) == [(1, 1)] * 2


def test_version_is_whole_when_all_ranks_have_it():
    trainers, generators = meshes()
    trainers.publish.call().get()
    generators.attach.call(trainers).get()
    generators.start_waiting.call(1).get()
    trainers.slice(gpus=0).train.call().get()
    assert values(generators.pull.call()) == [0, 0] and values(generators.version.call()) == [(0, 0)] * 2
    trainers.slice(gpus=1).train.call().get()
    assert values(generators.waited.call()) == [1, 1]
    assert values(generators.pull.call()) == [1, 1] and values(generators.version.call()) == [(1, 1)] * 2


def test_deadline_ends_pulls_and_waits():
    trainers, _ = meshes(1, 1)
    trainers.publish.call(buffers=1).get()
    trainers.fail.call().get()
    target = Weights.attach("policy", of=trainers, into={"bias": np.zeros(COLUMNS)})
    with deadline(0.3):
        pull, wait = target.pull(), target.wait(1)
    with pytest.raises(RDMATimeoutError, match="no version is whole"):
        pull.get(timeout=20)
    with pytest.raises(RDMATimeoutError, match="wait for version 1 of weights 'policy': the deadline has passed"):
        wait.get(timeout=20)
    with deadline(60):
        wait = target.wait(1)
    trainers.train.call().get()
    assert wait.get() == target.pull().get() == 1


@pytest.mark.parametrize("fan_out", [0, 2])
@pytest.mark.parametrize("taken", [2, 1])
def test_target_of_no_bytes_has_versions(taken, fan_out):
    trainers, _ = meshes(2, 1)
    trainers.publish.call().get()
    into = {"matrix": (np.zeros((0, COLUMNS), np.float32), Box((ROWS, 0), (0, COLUMNS), (ROWS, COLUMNS)))}
    target = Weights.attach("policy", of=trainers, into=into, buffers=taken, fan_out=fan_out)
    assert target.nbytes == 0 and target.pull().get() == 0
    trainers.slice(gpus=1).train.call().get()
    assert target.pull().get() == 0
    trainers.slice(gpus=0).train.call().get()
    assert target.pull().get() == target.version == target.wait(1).get() == 1


def test_steps_may_have_numbers_of_their_own():
    trainers, generators = meshes()
    trainers.publish.call().get()
    generators.attach.call(trainers).get()
    trainers.train.call(100).get()
    assert values(generators.wait.call(50)) == [100, 100] == values(generators.pull.call())
    with pytest.raises(Exception, match="version 100 is not larger than 100"):
        trainers.train.call(100).get()


@pytest.mark.parametrize("published", [2, 1])
def test_update_that_raises_is_no_version(published):
    trainers, generators = meshes()
    trainers.publish.call(buffers=published).get()
    generators.attach.call(trainers).get()
    assert values(trainers.fail.call()) == [0, 0]
    if published == 2:
        assert values(generators.pull.call()) == [0, 0] and values(generators.version.call()) == [(0, 0)] * 2
    else:
        # The weights themselves have been changed in part: nothing can be pulled before the next update.
        kind, text, _ = values(generators.pull.call(timeout=0.2))[0]
        assert kind == "RDMATimeoutError" and "no version is whole on all ranks" in text
    assert values(trainers.train.call()) == [1, 1]
    assert values(generators.pull.call()) == [1, 1] and values(generators.version.call()) == [(1, 1)] * 2


def test_updates_do_not_nest():
    trainers, _ = meshes(1, 1)
    trainers.publish.call().get()
    assert trainers.nested.call_one().get() == "an update of weights 'policy' is in progress"


@pytest.mark.parametrize("buffers", [2, 1])
def test_version_that_fits_no_word_is_refused(buffers):
    weights = {"a": np.zeros(2)}
    with Weights.publish("large", weights, buffers=buffers) as source:
        with pytest.raises(ValueError, match="update of weights 'large': version 4611686018427387904 is larger than"), source.update(2**62):
            weights["a"] += 1
        assert weights["a"].tolist() == [0, 0]
        with source.update(LAST):
            weights["a"] += 1
        assert source.version == LAST


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("buffers", [2, 1])
def test_fork_publishes_no_version(buffers, within):
    trainers, _ = meshes(1, 1)
    trainers.publish.call(buffers=buffers).get()
    target = Weights.attach("policy", of=trainers, into={"bias": np.zeros(COLUMNS)})
    assert target.pull().get() == 0
    assert "was forked from process" in trainers.fork_and_train.call_one(within).get()
    assert target.pull().get() == int(within)
    assert values(trainers.train.call()) == [1 + within] and target.pull().get() == 1 + within


# A copy takes longer than the step in between, so versions do go while they are read.
@pytest.mark.parametrize(("published", "taken", "times"), [(2, 2, 80), (2, 1, 80)])
def test_no_pull_gives_a_mixture(published, taken, times):
    trainers, generators = meshes(1, 2)
    count = 1 << 18
    trainers.publish_flat.call(count, buffers=published).get()
    generators.attach_flat.call(trainers, count, buffers=taken).get()
    sending, receiving = Channel.open()
    trainers.train_until_stopped.call(sending).get()
    found = values(generators.pull_flat.call(times))
    trainers.stop_training.call().get()
    last = receiving.recv().get()
    for seen, good, _ in found:
        assert good and seen == sorted(seen) and seen[-1] <= last


# An update waits for readers without an end: one that was not let through would be waited for, and so would one that had gone on.
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("taken", [2, 1])
def test_trainer_without_pauses_starves_no_reader(ranks, taken):
    trainers, generators = meshes(ranks, 3)
    count = 1 << 16
    trainers.publish_flat.call(count, buffers=1, wait=3600).get()
    generators.attach_flat.call(trainers, count, buffers=taken).get()
    sending, receiving = Channel.open()
    trainers.train_until_stopped.call(sending).get()
    # The trainer may begin later than the first pulls.
    found = values(generators.pull_flat.call(40, versions=2))
    trainers.stop_training.call().get()
    last = max(receiving.recv().get() for _ in range(ranks))
    for seen, good, _ in found:
        assert good and seen == sorted(seen) and seen[-1] <= last
    assert values(trainers.overdue.call()) == [0] * ranks


def test_stopped_reader_delays_one_update():
    trainers, generators = meshes(1, 2)
    trainers.publish_flat.call(8, buffers=1, wait=0.2).get()
    generators.attach_flat.call(trainers, 8).get()
    stopped = generators.slice(gpus=0)
    stopped.announce.call().get()
    pid = stopped.pid.call_one().get()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert trainers.train_flat.call_one(5).get() == 5
        assert values(trainers.overdue.call()) == [1]
        assert generators.slice(gpus=1).pull_flat.call_one(1).get() == ([5], True, 0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert stopped.pull_flat.call_one(1).get() == ([5], True, 0)


@pytest.mark.parametrize(("far", "at_once"), [(False, False), (True, False), (True, True)])
def test_killed_source_is_named_and_the_version_stays(far, at_once):
    with other_hosts() if far else nullcontext(this_host()) as hosts:
        trainers, generators = meshes(2, 1, hosts)
        if at_once:
            generators.look_at_once.call().get()
        trainers.publish.call().get()
        generators.attach.call(trainers).get()
        assert values(generators.pull.call()) == [0]
        waiting = generators.wait.call(9)
        trainers.train.call().get()
        os.kill(trainers.slice(gpus=1).pid.call_one().get(), signal.SIGKILL)
        for found in (values(waiting)[0], values(generators.pull.call())[0]):
            assert found[0] == "RDMAPeerLostError" and "rank 1 of 'trainers'" in found[1].splitlines()[0]
        assert values(generators.version.call()) == [(0, 0)]
        kind, text, _ = generators.attach_outcome.call_one(trainers).get()
        assert kind == "RDMAPeerLostError" and text.splitlines()[0] == "attach to weights 'policy': rank 1 of 'trainers' has ended"


def test_batch_of_looks_names_a_stopped_source():
    with other_hosts() as hosts:
        trainers, generators = meshes(2, 1, hosts)
        trainers.publish.call().get()
        generators.look_at_once.call().get()
        generators.attach.call(trainers).get()
        assert values(generators.pull.call()) == [0]
        pid = trainers.slice(gpus=1).pid.call_one().get()
        os.kill(pid, signal.SIGSTOP)
        try:
            [(kind, text, _)] = values(generators.pull.call(timeout=1))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert kind == "RDMATimeoutError" and "rank 1 of 'trainers'" in text.splitlines()[0]
        trainers.train.call().get()
        assert values(generators.pull.call()) == [1] and values(generators.version.call()) == [(1, 1)]


@pytest.mark.parametrize("published", [2, 1])
def test_source_killed_in_the_middle(published):
    trainers, generators = meshes(1, 2)
    count = 1 << 20
    trainers.publish_flat.call(count, buffers=published).get()
    generators.attach_flat.call(trainers, count).get()
    sending, receiving = Channel.open()
    trainers.train_until_stopped.call(sending).get()
    ready, told = Channel.open()
    pulling = generators.pull_until_it_fails.call(ready)
    told.recv().get()
    told.recv().get()
    os.kill(trainers.pid.call_one().get(), signal.SIGKILL)
    for kind, text, _, good in values(pulling):
        assert kind == "RDMAPeerLostError" and "rank 0 of 'trainers'" in text and good
    del receiving


def test_dead_reader_delays_no_update():
    trainers, generators = meshes(1, 2)
    trainers.publish_flat.call(8, buffers=1, wait=3600).get()
    generators.attach_flat.call(trainers, 8).get()
    generators.slice(gpus=0).announce.call().get()
    os.kill(generators.slice(gpus=0).pid.call_one().get(), signal.SIGKILL)
    assert trainers.train_flat.call_one(3).get(timeout=25) == 3
    assert generators.slice(gpus=1).pull_flat.call_one(1).get() == ([3], True, 0)


def test_silent_reader_delays_one_update():
    trainers, generators = meshes(1, 1)
    trainers.publish_flat.call(8, buffers=1, wait=0.2).get()
    generators.attach_flat.call(trainers, 8).get()
    generators.announce.call().get()
    assert trainers.train_flat.call_one(3).get() == 3
    assert values(generators.pull_flat.call(1)) == [([3], True, 0)]
    assert values(trainers.overdue.call()) == [1]


def test_readers_beyond_the_places_delay_an_update():
    trainers, generators = meshes(1, 3)
    trainers.limit_places.call(1).get()
    trainers.publish_flat.call(8, buffers=1, wait=0.2).get()
    for rank in range(3):
        generators.slice(gpus=rank).attach_flat.call(trainers, 8).get()
    generators.announce.call().get()
    assert trainers.train_flat.call_one(1).get() == 1
    assert values(trainers.overdue.call()) == [3]
    assert values(generators.pull_flat.call(1)) == [([1], True, 0)] * 3


def test_reader_that_waits_for_an_update_times_out():
    trainers, generators = meshes(1, 1)
    trainers.publish_flat.call(8).get()
    generators.attach_flat.call(trainers, 8).get()
    trainers.leave_unfinished.call().get()
    kind, text, _ = generators.pull.call_one(timeout=0.2).get()
    assert kind == "RDMATimeoutError" and text.splitlines()[0] == (
        "pull of weights 'flat': time-out of 0.2 s: no version is whole on all ranks"
    )


def in_turn(generators, name, *args, **options):
    """The results of all ranks, one after the other."""
    return [getattr(generators.slice(gpus=i), name).call_one(*args, **options).get() for i in range(generators.extent["gpus"])]


def tree_of(generators):
    """The rank that each rank reads from; None for the sources."""
    procs = values(generators.proc.call())
    return [None if at is None else procs.index(at) for at in values(generators.parent.call())]


def chain(count, size, **options):
    """A trainer, and generators of which each reads from the one before it."""
    trainers, generators = meshes(1, count)
    trainers.publish_flat.call(size, **options).get()
    in_turn(generators, "attach_flat", trainers, size, fan_out=1)
    assert tree_of(generators) == [None, *range(count - 1)]
    return trainers, generators


@pytest.mark.parametrize("published", [2, 1])
def test_targets_are_sources_of_others(published):
    trainers, generators = meshes(2, 4)
    count = 1 << 12
    trainers.publish_flat.call(count, buffers=published).get()
    in_turn(generators, "attach_flat", trainers, count)
    # A target that has no memory of its own takes its weights from another one that has.
    generators.slice(gpus=3).attach_flat.call_one(trainers, count, buffers=1).get()
    assert tree_of(generators)[:3] == [None, None, 0] and tree_of(generators)[3] is not None
    for step in range(3):
        assert in_turn(generators, "pull_flat", 1) == [([step], True, 0)] * 4
        trainers.train_flat.call(1).get()
    nbytes = 3 * 8 * count
    # The fourth target is new, and has pulled as often.
    assert values(generators.moved.call()) == [(nbytes, 0)] * 2 + [(0, nbytes)] * 2


def test_layouts_of_targets_are_passed_on():
    trainers, generators = meshes(2, 3)
    trainers.publish.call().get()
    # All need the same half of the columns; the last one in another dtype.
    for rank in range(3):
        generators.slice(gpus=rank).attach_half.call_one(trainers, cast=rank == 2).get()
    for step in range(2):
        assert in_turn(generators, "pull") == [step] * 3
        assert in_turn(generators, "version") == [(step, step)] * 3
        trainers.train.call().get()
    assert [(far > 0, near > 0) for far, near in values(generators.moved.call())] == [(True, False), (False, True), (True, False)]


# Neither the words nor the memories were read before.
@pytest.mark.parametrize(("published", "taken"), [(2, 2), (1, 1)])
def test_first_pull_reads_a_stopped_source(published, taken):
    trainers, generators = meshes(2, 1)
    trainers.publish.call(buffers=published).get()
    generators.attach.call(trainers, buffers=taken).get()
    pids = values(trainers.pid.call())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert values(generators.pull.call()) == [0]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert values(generators.version.call()) == [(0, 0)]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_reader_that_is_gone_delays_no_other(sign):
    trainers, generators = chain(3, 1 << 12)
    in_turn(generators, "pull_flat", 1)
    gone = generators.slice(gpus=0).pid.call_one().get()
    os.kill(gone, sign)
    try:
        left = generators.slice(gpus=slice(1, 3))
        for step in range(1, 4):
            trainers.train_flat.call(1).get()
            assert values(left.pull_flat.call(1)) == [([step], True, 0)] * 2
    finally:
        if sign == signal.SIGSTOP:
            os.kill(gone, signal.SIGCONT)


def test_target_that_was_collected_is_replaced():
    trainers, generators = chain(3, 1 << 12)
    in_turn(generators, "pull_flat", 1)
    generators.slice(gpus=0).collect.call_one().get()
    trainers.train_flat.call(1).get()
    left = generators.slice(gpus=slice(1, 3))
    assert values(left.pull_flat.call(1)) == [([1], True, 0)] * 2
    assert tree_of(left.slice(gpus=0)) == [None]


# Trainers without pauses, a chain of readers, and the end of the first of them in the middle.
@pytest.mark.parametrize("published", [2, 1])
def test_chain_of_readers_gives_no_mixture(published):
    trainers, generators = chain(3, 1 << 14, buffers=published)
    sending, receiving = Channel.open()
    trainers.train_until_stopped.call(sending).get()
    pulling = generators.slice(gpus=slice(1, 3)).pull_flat.call(25)
    os.kill(generators.slice(gpus=0).pid.call_one().get(), signal.SIGKILL)
    found = values(pulling)
    trainers.stop_training.call().get()
    last = receiving.recv().get()
    for seen, good, _ in found:
        assert good and seen == sorted(seen) and seen[-1] <= last


def test_pulls_of_one_target_take_turns():
    trainers, generators = meshes()
    trainers.publish.call().get()
    generators.attach.call(trainers).get()
    assert values(generators.two_at_once.call(5)) == [[0] * 5] * 2
    trainers.train.call().get()
    assert values(generators.cancelled.call()) == [1, 1] and values(generators.version.call()) == [(1, 1)] * 2


def test_dtypes_are_converted_where_that_is_asked_for():
    trainers, generators = meshes()
    trainers.publish.call().get()
    kind, text, _ = generators.attach_outcome.call(trainers, into={"bias": np.zeros(COLUMNS, np.float32)}).get().values()[0]
    assert kind == "LayoutError" and "tensor 'bias': it is float64 in rank 0 of 'trainers', and float32 in the target" in text
    generators.attach.call(trainers, dtype="float64", cast=True).get()
    trainers.train.call().get()
    assert values(generators.pull.call()) == [1, 1] and values(generators.version.call()) == [(1, 1)] * 2


def test_weights_that_are_not_published():
    trainers, generators = meshes(2, 1)
    trainers.pid.call().get()
    generators.pid.call().get()
    kind, text, _ = generators.attach_outcome.call_one(trainers, timeout=3).get()
    assert (kind, text.splitlines()[0]) == (
        "NotPublishedError",
        "attach to weights 'policy': time-out of 3 s: ranks 0, 1 of 'trainers' publish no weights 'policy'",
    )
    trainers.publish.call("value").get()
    trainers.slice(gpus=0).publish.call("policy").get()
    kind, text, _ = generators.attach_outcome.call_one(trainers, timeout=2).get()
    assert kind == "NotPublishedError" and "rank 1 of 'trainers' publishes no weights 'policy'; it publishes 'value'" in text
    kind, text, _ = generators.attach_outcome.call_one(trainers, timeout=3600, within=2).get()
    assert kind == "NotPublishedError" and "rank 1 of 'trainers'" in text


def test_attach_waits_for_all_ranks():
    trainers, generators = meshes(2, 2)
    trainers.publish.call("value").get()
    trainers.slice(gpus=0).publish.call("policy").get()
    attaching = generators.attach.call(trainers)
    trainers.slice(gpus=1).publish_when_refused.call().get()
    attaching.get()
    assert values(generators.pull.call()) == [0, 0] and values(generators.version.call()) == [(0, 0)] * 2


def test_attach_while_trainers_are_made():
    procs = procs_of(2, "trainers")
    _, generators = meshes(1, 2)
    generators.attach.call(procs.spawn("trainers", ReadyTrainer)).get()
    assert values(generators.pull.call()) == [0, 0] and values(generators.version.call()) == [(0, 0)] * 2


def test_attach_names_a_rank_that_ends_meanwhile():
    trainers, generators = meshes(2, 1)
    trainers.publish.call("value").get()
    trainers.slice(gpus=0).publish.call("policy").get()
    attaching = generators.attach_outcome.call_one(trainers)
    os.kill(trainers.slice(gpus=1).pid.call_one().get(), signal.SIGKILL)
    kind, text, _ = attaching.get()
    assert kind == "RDMAPeerLostError" and text.splitlines()[0] == "attach to weights 'policy': rank 1 of 'trainers' has ended"


def test_source_that_is_closed():
    trainers, generators = meshes(1, 1)
    trainers.publish.call().get()
    generators.attach.call(trainers).get()
    assert values(generators.pull.call()) == [0]
    waiting = generators.wait.call(1)
    trainers.close.call().get()
    assert values(waiting)[0][0] == "NotPublishedError"
    kind, text, _ = values(generators.pull.call())[0]
    assert kind == "RDMAReleasedError" and "rank 0 of 'trainers'" in text
    assert values(generators.version.call()) == [(0, 0)]
    with pytest.raises(Exception, match="the source of weights 'policy' is closed"):
        trainers.train.call().get()
    trainers.publish.call().get()
    generators.attach.call(trainers).get()
    assert values(generators.pull.call()) == [0]


def test_abandoned_waits_are_forgotten():
    trainers, generators = meshes(2, 1)
    trainers.publish.call().get()
    generators.attach.call(trainers).get()

    def waiting(count):
        eventually("so many requests wait", lambda: values(trainers.waiting.call()), lambda found: found == [count] * 2)

    generators.start_waiting.call(5).get()
    waiting(1)
    generators.give_up.call().get()
    waiting(0)
    generators.start_waiting.call(5).get()
    waiting(1)
    os.kill(generators.pid.call_one().get(), signal.SIGKILL)
    waiting(0)


@pytest.mark.parametrize("start", [0, 1, -4, 1 << 40, 1 << 62])
def test_box_outside_of_its_memory_is_refused(start):
    memory, into = np.arange(64, dtype=np.int16), np.zeros(32, np.int16)
    # The second of two columns, as a source states it that may be wrong.
    extent, itemsize = np.array([[32, 1]]), np.array([2])
    there = np.array([2 + start]), np.array([[4, 2]])
    here = np.array([into.ctypes.data]), np.array([[2, 2]])
    buffer = RDMABuffer(memoryview(memory), readonly=True)

    def read():
        plan_of(READ, [(buffer, find_runs(extent, itemsize, there, here))], None, into).submit().get()

    if start:
        with pytest.raises(RDMAAccessError):
            read()
        assert not into.any()
    else:
        read()
        assert (into == memory[1::2]).all()
