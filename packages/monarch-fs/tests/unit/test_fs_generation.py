"""The agreement of hosts on a generation: by hand for the rules, and simulated with lost, repeated and reordered messages."""

from __future__ import annotations

import random

import pytest

from monarch.fs._daemon.generation import Do, HostDo, HostGeneration, HostStep, Outcome, Rollout, Step


def dos(steps: list[Step]) -> list[tuple[Do, str]]:
    return [(step.do, step.host) for step in steps]


def test_commit_follows_when_all_hosts_staged() -> None:
    rollout = Rollout("1", ["a", "b"])
    assert dos(rollout.start("2")) == [(Do.STAGE, "a"), (Do.STAGE, "b")]
    assert rollout.staged("a", 1) == []
    assert dos(rollout.staged("b", 1)) == [(Do.COMMIT, "a"), (Do.COMMIT, "b")]
    assert rollout.generation == "2"
    assert rollout.shown("a", 1) == []
    assert rollout.shown("b", 1)[0].outcome == Outcome("2", True, {})


@pytest.mark.parametrize("event", ["failed", "lost"])
def test_host_that_cannot_stage_aborts_all(event: str) -> None:
    rollout = Rollout("1", ["a", "b"])
    rollout.start("2")
    rollout.staged("a", 1)
    steps = rollout.failed("b", 1, "no room") if event == "failed" else rollout.lost("b")
    assert (Do.ABORT, "a") in dos(steps)
    assert ((Do.ABORT, "b") in dos(steps)) == (event == "failed")
    outcome = steps[-1].outcome
    assert outcome == Outcome("2", False, {"b": "no room" if event == "failed" else "the host was lost"})
    assert rollout.generation == "1" and not rollout.busy


def test_late_answer_of_aborted_round_does_not_count() -> None:
    rollout = Rollout("1", ["a"])
    rollout.start("2")
    rollout.cancel("too late")
    rollout.start("2")
    assert rollout.staged("a", 1) == []
    assert dos(rollout.staged("a", 2)) == [(Do.COMMIT, "a")]


def test_host_lost_after_decision_opens_when_it_returns() -> None:
    rollout = Rollout("1", ["a", "b"])
    rollout.start("2")
    rollout.staged("a", 1)
    rollout.staged("b", 1)
    rollout.shown("a", 1)
    assert rollout.lost("b")[0].outcome == Outcome("2", True, {"b": "the host was lost"})
    assert rollout.returned("b", 0) == [Step(Do.OPEN, "b", 1, "2")]
    assert rollout.behind() == ["b"]
    rollout.shown("b", 1)
    assert rollout.behind() == []


def test_host_whose_commit_fails_opens_then_closes() -> None:
    rollout = Rollout("1", ["a"])
    rollout.start("2")
    rollout.staged("a", 1)
    assert dos(rollout.failed("a", 1, "not staged")) == [(Do.OPEN, "a")]
    assert dos(rollout.failed("a", 1, "no space")) == [(Do.CLOSE, "a"), (Do.FINISH, "")]


def test_host_that_joins_during_staging_opens_after_decision() -> None:
    rollout = Rollout("1", ["a"])
    rollout.start("2")
    assert rollout.returned("b") == [Step(Do.OPEN, "b", 0, "1")]
    rollout.shown("b", 0)
    assert dos(rollout.staged("a", 1)) == [(Do.COMMIT, "a"), (Do.OPEN, "b")]


def test_second_refresh_at_a_time_is_refused() -> None:
    rollout = Rollout("1", ["a"])
    rollout.start("2")
    with pytest.raises(ValueError, match="2 is under way"):
        rollout.start("3")


def test_refresh_without_hosts_is_decided_at_once() -> None:
    assert Rollout("1").start("2")[0].outcome == Outcome("2", True, {})


def test_stage_after_its_abort_has_no_effect() -> None:
    host = HostGeneration("1")
    host.abort(1)
    assert host.stage(1, "2") == []
    assert host.stage(2, "2") == [HostStep(HostDo.PREPARE, 2, "2")]


def test_repeated_commit_switches_once() -> None:
    host = HostGeneration("1")
    host.stage(1, "2")
    host.prepared(1)
    assert [step.do for step in host.commit(1)] == [HostDo.SWITCH]
    assert host.commit(1) == []
    assert host.abort(1) == []
    assert [step.do for step in host.switched(1)] == [HostDo.REPLY_SHOWN]
    assert [step.do for step in host.commit(1)] == [HostDo.REPLY_SHOWN]


def test_commit_without_stage_is_refused() -> None:
    assert HostGeneration("1").commit(1)[0].do is HostDo.REPLY_FAILED


class Cluster:
    """One client, hosts, and messages in flight that may be lost, repeated and delivered in any order."""

    def __init__(self, seed: int, hosts: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"h{number}" for number in range(hosts)]
        self.hosts = {name: HostGeneration("0") for name in self.names}
        self.rollout = Rollout("0", self.names)
        # Generations by their round, once decided.
        self.decided = {-1: "", 0: "0"}
        self.flight: list[tuple[str, Step | HostStep, bool]] = []
        # Work of hosts that takes time.
        self.down: set[str] = set()
        self.outcomes: list[Outcome] = []
        self.highest = dict.fromkeys(self.names, 0)
        self.lossy = True

    def client(self, steps: list[Step]) -> None:
        self.decided[self.rollout.round] = self.rollout.generation
        for step in steps:
            if step.outcome is not None:
                self.outcomes.append(step.outcome)
            elif step.do is Do.CLOSE:
                self.down.add(step.host)
            else:
                self.send(step.host, step)

    def send(self, host: str, message: Step | HostStep) -> None:
        chance = self.random.random() if self.lossy else 1.0
        copies = 0 if chance < 0.05 else 2 if chance < 0.1 else 1
        self.flight += [(host, message, False)] * copies

    def host(self, name: str, steps: list[HostStep]) -> None:
        for step in steps:
            if step.do in (HostDo.PREPARE, HostDo.SWITCH):
                self.flight.append((name, step, True))
            elif step.do is not HostDo.DROP:
                self.send(name, step)
        host = self.hosts[name]
        # Never a step back, and nothing that was not decided.
        assert host.round >= self.highest[name]
        assert self.decided[host.round] == host.generation
        self.highest[name] = host.round

    def deliver(self) -> None:
        place = self.random.randrange(len(self.flight))
        self.flight[place], self.flight[-1] = self.flight[-1], self.flight[place]
        name, message, local = self.flight.pop()
        if name in self.down:
            return
        host = self.hosts[name]
        if isinstance(message, Step):
            match message.do:
                case Do.STAGE:
                    self.host(name, host.stage(message.round, message.generation))
                case Do.COMMIT:
                    self.host(name, host.commit(message.round))
                case Do.ABORT:
                    self.host(name, host.abort(message.round))
                case _:
                    self.host(name, host.open(message.round, message.generation))
        elif local:
            if self.lossy and self.random.random() < 0.25 / len(self.names):
                self.host(name, host.failed(message.round, "no space"))
            elif message.do is HostDo.PREPARE:
                self.host(name, host.prepared(message.round))
            else:
                self.host(name, host.switched(message.round))
        elif message.do is HostDo.REPLY_STAGED:
            self.client(self.rollout.staged(name, message.round))
        elif message.do is HostDo.REPLY_SHOWN:
            self.client(self.rollout.shown(name, message.round))
        else:
            self.client(self.rollout.failed(name, message.round, message.reason))

    def settle(self) -> None:
        steps: list[Step] = []
        for _ in range(200):
            while self.flight:
                self.deliver()
                if self.lossy and self.random.random() < 0.05 / len(self.names):
                    self.fail()
            steps = self.rollout.again()
            if not steps:
                return
            self.client(steps)
        raise AssertionError(f"the hosts do not agree: {steps[:3]}")

    def fail(self) -> None:
        name = self.random.choice(self.names)
        self.down.add(name)
        self.client(self.rollout.lost(name))

    def recover(self) -> None:
        for name in sorted(self.down):
            self.down.discard(name)
            # A host that is back has what its state folder has, or nothing at all.
            if self.random.random() < 0.5:
                host = self.hosts[name] = HostGeneration(self.hosts[name].generation, self.hosts[name].round)
                self.client(self.rollout.returned(name, host.round))
            else:
                self.hosts[name], self.highest[name] = HostGeneration("", -1), -1
                self.client(self.rollout.returned(name))


@pytest.mark.parametrize(("seed", "hosts", "rounds"), [*((seed, 5, 30) for seed in range(40)), (100, 1024, 4)])
def test_hosts_agree_over_lost_and_reordered_messages(seed: int, hosts: int, rounds: int) -> None:
    cluster = Cluster(seed, hosts)
    for round in range(1, rounds + 1):
        before = cluster.rollout.generation
        cluster.client(cluster.rollout.start(str(round)))
        cluster.settle()
        outcome = cluster.outcomes[-1]
        assert len(cluster.outcomes) == round and outcome.generation == str(round)
        assert cluster.rollout.generation == (str(round) if outcome.committed else before)
        assert outcome.committed or outcome.failures
        for name in cluster.names:
            if name not in cluster.down:
                assert cluster.hosts[name].generation == cluster.rollout.generation
        cluster.recover()
        cluster.settle()
    # Both ends of a refresh were met.
    assert hosts > 5 or {outcome.committed for outcome in cluster.outcomes} == {True, False}
    cluster.lossy = False
    cluster.recover()
    cluster.client(cluster.rollout.start("last"))
    cluster.settle()
    assert cluster.outcomes[-1] == Outcome("last", True, {})
    assert {host.generation for host in cluster.hosts.values()} == {"last"}
