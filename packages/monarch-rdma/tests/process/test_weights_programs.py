"""Weights of programs that `monarch.spmd.run` has started: sources and targets beside those of actors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from eventually import eventually
from other_hosts import other_hosts
from program_ranks import Ranks, Refused
from weights_actors import Generator, Trainer, whole
from weights_program import shared_of

from monarch.actor import handle_bytes, this_host
from monarch.extension.program import ProgramMesh
from monarch.rdma import RDMAError
from monarch.rdma.weights import Weights
from monarch.spmd import RestartPolicy, SPMDError, run_mesh
from tools.project import ROOT


@pytest.fixture
def ranks(tmp_path):
    made = []

    def start(name, count, **options):
        made.append(Ranks(tmp_path, name, count, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def generators(count=2):
    return this_host().spawn_procs({"gpus": count}, name="generators").spawn("generators", Generator)


def values(call):
    return call.get().values()


def test_actors_pull_from_programs(ranks):
    trainers, readers = ranks("trainers", 3), generators()
    assert trainers.ask("publish()") == [0, 0, 0]
    assert values(readers.attach.call(trainers.run.procs())) == [whole(0)["matrix"].nbytes // 2 + 64] * 2
    for step in range(4):
        assert values(readers.pull.call()) == [step] * 2
        assert values(readers.version.call()) == [(step, step)] * 2
        assert trainers.ask("train()") == [step + 1] * 3


def test_programs_pull_from_programs(ranks):
    trainers, readers = ranks("trainers", 2), ranks("readers", 3)
    trainers.ask("publish(columns=3)")
    readers.ask("attach('trainers')")
    for step in range(4):
        assert readers.ask("pull()") == [[step, step]] * 3
        assert readers.ask("pull()") == [[step, step]] * 3
        trainers.ask("train()")


def test_pull_waits_for_an_unanswered_one(ranks):
    trainers, readers = ranks("trainers", 1), ranks("readers", 1)
    trainers.ask("publish()")
    readers.ask("attach('trainers')")
    trainers.ask("train()")
    [[first, second]] = readers.ask("pull_while_stopped()")
    assert first.endswith("has not answered") and second.endswith("has not answered the request before it")
    trainers.ask("train()")
    assert readers.ask("pull()") == [[2, 2]]


def test_programs_pull_from_a_mesh_of_actors(ranks):
    readers = ranks("readers", 2)
    with this_host().spawn_procs({"gpus": 3}, name="trainers") as procs:
        trainers = procs.spawn("trainers", Trainer)
        values(trainers.publish.call())
        handle = handle_bytes(trainers)
        readers.ask(f"attach_handle({handle!r})")
        for step in range(3):
            assert readers.ask("pull()") == [[step, step]] * 2
            readers.send(f"wait({step + 1})")
            values(trainers.train.call())
            assert readers.answers() == [step + 1] * 2
    with pytest.raises(Refused, match="RDMAPeerLostError.*rank 0 of 'trainers' has ended"):
        readers.ask(f"attach_handle({handle!r})")


def test_mesh_of_another_client_is_refused(ranks, tmp_path):
    script = """
import sys
from monarch.actor import handle_bytes, this_proc

print(handle_bytes(this_proc()).decode(), flush=True)
sys.stdin.read()
"""
    reader = ranks("reader", 1)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        handle = other.stdout.readline().strip()
        with pytest.raises(Refused, match="RDMAAccessError.*is a mesh of another client.*hint: in the program of a run, of= takes"):
            reader.ask(f"attach_handle({handle!r})")
        other.stdin.close()


def test_ranks_of_one_run_on_both_sides(ranks):
    both = ranks("both", 2)
    both.ask("publish()")
    both.ask("attach()")
    both.ask("train()")
    assert both.ask("pull()") == [[1, 1]] * 2
    with pytest.raises(Refused, match="LayoutError.*tensor 'matrix'"):
        both.ask("attach(ranks=[0])", [1])
    with pytest.raises(Refused, match="'run_both' has 2 ranks, and no rank 2"):
        both.ask("attach(ranks=[1, 2])", [1])


def test_programs_on_another_host(ranks):
    with other_hosts() as hosts:
        trainers, readers = ranks("trainers", 2, hosts=hosts), generators()
        trainers.ask("publish()")
        readers.attach.call(trainers.run.procs()).get()
        for step in range(3):
            assert values(readers.pull.call()) == [step] * 2
            assert values(readers.version.call()) == [(step, step)] * 2
            trainers.ask("train()")
        trainers.close()


def test_wait_is_answered_by_an_update(ranks):
    trainers, readers, programs = ranks("trainers", 2), generators(), ranks("readers", 1)
    trainers.ask("publish()")
    readers.attach.call(trainers.run.procs()).get()
    programs.ask("attach('trainers')")
    later = readers.wait.call(2)
    programs.send("wait(2)")
    trainers.ask("train()")
    trainers.ask("train()")
    assert values(later) == [2, 2] and programs.answers() == [2]
    with pytest.raises(Refused, match="RDMATimeoutError.*the deadline has passed"):
        programs.ask("wait_with_deadline()")


def forgotten(trainers):
    eventually("no request waits", lambda: trainers.ask("awaited()"), lambda found: found == [None])


def test_deadline_ends_wait_of_stopped_proc(ranks):
    trainers, readers = ranks("trainers", 1), ranks("readers", 1)
    trainers.ask("publish()")
    readers.ask("attach('trainers')")
    [text] = readers.ask("wait_while_stopped()")
    assert text == "wait for version 100 of weights 'policy': the deadline has passed"
    forgotten(trainers)


def test_abandoned_waits_of_programs_are_forgotten(ranks):
    trainers, readers = ranks("trainers", 1), ranks("readers", 1)
    trainers.ask("publish()")
    readers.ask("attach('trainers')")
    readers.ask("drop_waits(50)")
    forgotten(trainers)
    eventually("the program forgets", lambda: readers.ask("unanswered()"), lambda found: found == [0])
    with pytest.raises(Refused, match="RDMATimeoutError"):
        readers.ask("wait_with_deadline()")
    forgotten(trainers)
    [pid] = readers.ask("os.getpid()")
    readers.send("wait(7)")
    eventually("a request waits", lambda: trainers.ask("awaited()"), lambda found: found == [7])
    os.kill(pid, signal.SIGKILL)
    forgotten(trainers)


@pytest.mark.parametrize("wait", [0, 1.0])
def test_no_pull_gives_a_mixture(ranks, wait):
    trainers, reader = ranks("trainers", 1), generators(1)
    trainers.ask(f"publish_flat(100_000, wait={wait})")
    reader.attach_flat.call(trainers.run.procs(), 100_000).get()
    trainers.send("train_flat(400)")
    [(seen, good, _)] = values(reader.pull_flat.call(100))
    assert good, seen
    assert trainers.answers() == [400]


def test_killed_program_is_a_lost_source(ranks):
    trainers, readers, programs = ranks("trainers", 2), generators(1), ranks("readers", 1)
    trainers.ask("publish()")
    # The other rank goes on when the run ends it.
    trainers.ask("str(signal.signal(signal.SIGTERM, signal.SIG_IGN))", [0])
    readers.attach.call(trainers.run.procs()).get()
    programs.ask("attach('trainers')")
    assert values(readers.pull.call()) == [0] and programs.ask("pull()") == [[0, 0]]
    later = readers.wait.call(1)
    programs.send("wait(1)")
    trainers.kill(1, signal.SIGKILL)
    [(kind, text, _)] = values(later)
    assert kind == "RDMAPeerLostError" and "rank 1 of 'run_trainers' has ended" in text
    with pytest.raises(Refused, match="RDMAPeerLostError.*rank 1 of 'run_trainers' has ended"):
        programs.answers()
    [(kind, text, _)] = values(readers.pull.call())
    assert kind == "RDMAPeerLostError" and "rank 1 of 'run_trainers'" in text.splitlines()[0]
    with pytest.raises(Refused, match="RDMAPeerLostError.*rank 1 of 'run_trainers'"):
        programs.ask("pull()")
    [(kind, text, _)] = values(readers.attach_outcome.call(trainers.run.procs()))
    assert kind == "RDMAPeerLostError" and "rank 1 of 'run_trainers' has ended" in text
    assert values(readers.version.call()) == [(0, 0)]
    trainers.ask("str(signal.signal(signal.SIGTERM, signal.SIG_DFL))", [0])


def test_source_is_lost_when_the_run_has_ended(ranks):
    trainers, readers = ranks("trainers", 1), generators(1)
    trainers.ask("publish()")
    readers.attach.call(trainers.run.procs()).get()
    trainers.close()
    [(kind, text, _)] = values(readers.pull.call())
    assert kind == "RDMAPeerLostError" and "rank 0 of 'run_trainers'" in text.splitlines()[0]


def test_child_of_a_killed_program_keeps_no_source(ranks):
    trainers, readers = ranks("trainers", 2), generators(1)
    trainers.ask("publish()")
    trainers.ask("str(signal.signal(signal.SIGTERM, signal.SIG_IGN))", [0])
    readers.attach.call(trainers.run.procs()).get()
    trainers.ask("leave_child()", [1])
    later = readers.wait.call(1)
    trainers.kill(1, signal.SIGKILL)
    [(kind, text, _)] = values(later)
    assert kind == "RDMAPeerLostError" and "rank 1 of 'run_trainers' has ended" in text


def test_memory_of_a_killed_program_is_freed(ranks):
    trainers = ranks("trainers", 2)
    trainers.ask("publish_flat(4_000_000)")
    trainers.ask("str(signal.signal(signal.SIGTERM, signal.SIG_IGN))", [0])
    [pid] = trainers.ask("proc()", [1])
    assert shared_of(pid) > 64_000_000
    trainers.kill(1, signal.SIGKILL)
    eventually("the proc frees the memory", lambda: shared_of(pid), lambda nbytes: nbytes < 64_000_000)


def test_attempt_after_a_failure_is_found_by_name(ranks):
    trainers, readers = ranks("trainers", 1, policy=RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))), ranks("readers", 1)
    trainers.ask("publish()")
    readers.ask("attach('trainers')")
    trainers.kill(0, signal.SIGKILL)
    trainers.reopen()
    trainers.ask("publish()")
    trainers.ask("train()")
    readers.ask("attach('trainers')")
    assert readers.ask("pull()") == [[1, 1]]


def test_attach_waits_for_the_next_attempt(ranks):
    trainers, readers = ranks("trainers", 2, policy=RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))), ranks("readers", 1)
    trainers.ask("publish()")
    readers.ask("attach('trainers')")
    # The attempt goes on until this rank ends, too.
    trainers.ask("str(signal.signal(signal.SIGTERM, signal.SIG_IGN))", [0])
    readers.send("wait(1)")
    trainers.kill(1, signal.SIGKILL)
    with pytest.raises(Refused, match="RDMAPeerLostError"):
        readers.answers()
    readers.send("attach('trainers')")
    trainers.kill(0, signal.SIGKILL)
    trainers.reopen()
    trainers.ask("publish()")
    trainers.ask("train()")
    readers.answers()
    assert readers.ask("pull()") == [[1, 1]]


def test_page_goes_on_with_the_next_attempt(tmp_path):
    """The block of the page prints the failure of the first attempt, and so does not run with the others."""
    [block] = re.findall(r"^```python no-run\n(.*?)^```$", (ROOT / "docs" / "weights-programs.md").read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the loss is not finite; restarted" in done.stderr, done.stderr


def test_attach_to_an_unknown_run_times_out(ranks):
    readers = ranks("readers", 1)
    readers.ask("publish()")  # loads the handler
    with pytest.raises(Refused, match="NotPublishedError.*the run 'absent' has no procs"):
        readers.ask("attach('absent', timeout=0.5)")


@pytest.mark.parametrize(("end", "why"), [("exit(3)", "exited with code 3"), ("exit(0)", "it has succeeded"), (None, "it was stopped")])
def test_attach_to_an_ended_run_fails(ranks, end, why):
    trainers, readers = ranks("trainers", 1), ranks("readers", 1)
    trainers.ask("publish()")
    readers.send("attach('trainers', name='never', timeout=1e6)")
    if end is None:
        trainers.run.stop().get()
    else:
        trainers.send(end)
    for _ in range(2):  # one that waits for the weights, and one after the end
        with pytest.raises(Refused, match=f"RDMAPeerLostError.*the run 'trainers' has ended.*{why}"):
            readers.answers()
        readers.send("attach('trainers', timeout=1e6)")
    with pytest.raises(Refused, match="has ended"):
        readers.answers()


def test_stopped_proc_delays_publish_until_a_deadline(ranks):
    trainers = ranks("trainers", 1)
    [(texts, pid)] = trainers.ask("publish_while_stopped(0.2)")
    for text, what in zip(texts, ("publish of weights 'policy'", "close of weights 'closed'"), strict=True):
        first, *others = text.splitlines()
        assert first.startswith(f"{what}: time-out of 0.") and first.endswith(f"the proc of this program, process {pid}, has not answered")
        assert others == ["  the proc is stopped, as by SIGSTOP"]
    eventually("the proc ends what it has made later", lambda: shared_of(pid), lambda nbytes: nbytes == 0)
    assert trainers.ask("publish()") == [0]


def test_program_closes_and_publishes_again(ranks):
    trainers, readers = ranks("trainers", 1), generators(1)
    trainers.ask("publish()")
    with pytest.raises(Refused, match="ValueError.*publishes weights 'policy' already"):
        trainers.ask("publish()")
    readers.attach.call(trainers.run.procs()).get()
    trainers.ask("close()")
    [(kind, text, _)] = values(readers.pull.call())
    assert kind == "RDMAReleasedError" and "rank 0 of 'run_trainers'" in text.splitlines()[0]
    [(kind, text, _)] = values(readers.attach_outcome.call(trainers.run.procs(), timeout=2))
    assert kind == "NotPublishedError" and "rank 0 of 'run_trainers'" in text
    sizes = trainers.ask("publish_again(5)")[0]
    assert len(set(sizes)) == 1
    trainers.ask("publish()")
    readers.attach.call(trainers.run.procs()).get()
    assert values(readers.pull.call()) == [0]


def test_targets_that_were_collected_keep_no_memory(ranks):
    both = ranks("both", 1)
    both.ask("publish()")
    [sizes] = both.ask("attach_again(6)")
    assert len(set(sizes[1:])) == 1


def test_targets_of_programs_are_sources_of_others(ranks):
    trainers, readers = ranks("trainers", 1), ranks("readers", 2)
    trainers.ask("publish()")
    [nbytes] = readers.ask("attach('trainers', cut=False, fan_out=1)", [0])
    readers.ask("attach('trainers', cut=False, fan_out=1)", [1])
    for step in range(3):
        assert readers.ask("pull()", [0]) == [[step, step]] and readers.ask("pull()", [1]) == [[step, step]]
        trainers.ask("train()")
    assert readers.ask("moved()") == [[3 * nbytes, 0], [0, 3 * nbytes]]


def test_dtypes_are_converted_in_programs(ranks):
    both = ranks("both", 1)
    both.ask("publish()")
    with pytest.raises(Refused, match="LayoutError"):
        both.ask("attach(dtype='float16')")
    both.ask("attach(dtype='float64', cast=True)")
    both.ask("train()")
    assert both.ask("pull()") == [[1, 1]]


def test_program_whose_client_has_actors(ranks):
    program = ranks("program", 1)
    program.ask("publish()")
    assert program.ask("own_actor()") == [[0]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("publish('other', buffers=1)", "ValueError.*buffers=1"),
        ("attach(buffers=1)", "ValueError.*buffers=1"),
        ("attach('absent', timeout=0.2)", "NotPublishedError.*the run 'absent' has no procs"),
        ("attach(name='absent', timeout=2)", "NotPublishedError.*rank 0 of 'run_program' publishes no weights 'absent'"),
        ("train(version=0)", "ValueError.*version 0 is not larger"),
        ("run_mesh(ranks=[])", "ValueError.*ranks"),
        ("run_mesh(7)", "TypeError.*run_id=7"),
        ("run_mesh(ranks=0)", "TypeError.*ranks=0: expected numbers of ranks"),
        ("run_mesh(ranks='01')", "TypeError.*ranks='01': expected numbers of ranks"),
        ("Weights.attach('policy', of=None, into=whole(0))", "TypeError.*of=None: expected a mesh"),
    ],
)
def test_calls_that_programs_are_refused(ranks, text, error):
    program = ranks("program", 1)
    program.ask("publish()")
    with pytest.raises(Refused, match=error):
        program.ask(text)
    assert "was forked from process" in program.ask("fork_and_train()")[0]
    assert "was forked from process" in program.ask("fork_and_close()")[0]
    assert program.ask("train()") == [1]


def test_cut_connection_ends_sources_and_targets(ranks):
    both = ranks("both", 1)
    both.ask("publish()")
    both.ask("attach()")
    both.ask("pull()")
    both.ask("cut()")
    with pytest.raises(Refused, match="RDMAPeerLostError.*update of weights 'policy': the connection of this program"):
        both.ask("train()")
    # The proc counts the sources and targets of the new connection from one again.
    both.ask("publish('other')")
    both.ask("train('other', 7)")
    with pytest.raises(Refused, match="RDMAPeerLostError.*pull of weights 'policy'"):
        both.ask("pull()")
    with pytest.raises(Refused, match="RDMAPeerLostError.*wait for weights 'policy'"):
        both.ask("wait(0)")
    both.ask("close()")
    both.ask("attach(name='other')")
    assert both.ask("pull('other')") == [[7, 7]]
    with pytest.raises(Refused, match="RDMAPeerLostError.*pull of weights 'policy'"):
        both.ask("pull()")


def test_failure_without_descriptors_keeps_no_memory(ranks):
    both = ranks("both", 1)
    both.ask("publish()")
    [sizes] = both.ask("without_descriptors(lambda: publish('other'), 3)")
    assert len(set(sizes)) == 1
    [sizes] = both.ask("without_descriptors(attach, 4)")
    assert len(set(sizes[1:])) == 1
    assert both.ask("publish('other')") == [0]


def test_name_of_two_runs_is_refused(ranks, tmp_path):
    first, reader = ranks("same", 1), ranks("reader", 1)
    (tmp_path / "second").mkdir()
    second = Ranks(tmp_path / "second", "same", 1)
    first.ask("publish()")
    with pytest.raises(Refused, match="2 active runs have the run_id 'same'"):
        reader.ask("attach('same')")
    second.close()
    reader.ask("attach('same')")
    assert reader.ask("pull()") == [[0, 0]]


def test_wait_beyond_any_version_harms_no_other_wait(ranks):
    both = ranks("both", 1)
    both.ask("publish()")
    both.ask("attach()")
    with pytest.raises(Refused, match="ValueError.*wait for weights 'policy': version 1180591620717411303424 is larger"):
        both.ask("wait(2**70)")
    both.ask("train()")
    assert both.ask("wait(1)") == [1]


def test_outside_of_a_run():
    with pytest.raises(SPMDError, match="this process is no rank of a run\nhint: start the program with monarch.spmd.run"):
        run_mesh()
    with pytest.raises(RDMAError, match="this process is no rank of a run"):
        Weights.attach("policy", of=ProgramMesh(), into=whole(0))
