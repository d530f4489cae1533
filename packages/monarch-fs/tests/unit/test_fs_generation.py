"""The agreement of hosts on a generation: by hand for the rules, and simulated with hosts that fail, are lost and return."""

from __future__ import annotations

import random
from collections import deque

import pytest

from monarch.fs._daemon.generation import Do, Outcome, Rollout, Step


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
    assert rollout.returned("b") == [Step(Do.OPEN, "b", 1, "2")]
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


class Host:
    """The service of a host: it shows a generation, and has others staged. Every step may be repeated."""

    def __init__(self, shown: str = "") -> None:
        self.shown = shown
        self.staged: set[str] = set()

    def take(self, step: Step) -> bool:
        """Whether it did what was asked."""
        match step.do:
            case Do.STAGE:
                self.staged.add(step.generation)
            case Do.COMMIT:
                if step.generation not in self.staged | {self.shown}:
                    return False
                self.staged.discard(step.generation)
                self.shown = step.generation
            case Do.OPEN:
                self.shown = step.generation
            case Do.ABORT:
                self.staged.discard(step.generation)
            case _:
                self.shown = ""
        return True


class Cluster:
    """One client, and hosts that get its steps in order: they fail at some, and are lost with what they have not answered."""

    def __init__(self, seed: int, hosts: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"h{number}" for number in range(hosts)]
        self.hosts = {name: Host("0") for name in self.names}
        self.rollout = Rollout("0", self.names)
        self.steps: dict[str, deque[Step]] = {name: deque() for name in self.names}
        self.answers: deque[tuple[Step, bool]] = deque()
        self.down: set[str] = set()
        self.decided = {"", "0"}
        self.outcomes: list[Outcome] = []
        self.lossy = True

    def client(self, steps: list[Step]) -> None:
        self.decided.add(self.rollout.generation)
        for step in steps:
            if step.outcome is not None:
                self.outcomes.append(step.outcome)
            elif step.host not in self.down:
                self.steps[step.host].append(step)
                if step.do is Do.CLOSE:
                    self.closed(step.host)

    def closed(self, name: str) -> None:
        """The mount of the host has ended: the client has it as lost already."""
        self.down.add(name)
        self.hosts[name] = Host()
        self.steps[name].clear()

    def deliver(self, busy: list[str]) -> None:
        name = self.random.choice(busy)
        step, host = self.steps[name].popleft(), self.hosts[name]
        before = int(host.shown or -1)
        fails = self.lossy and step.do in (Do.STAGE, Do.COMMIT, Do.OPEN) and self.random.random() < 0.25 / len(self.names)
        done = not fails and host.take(step)
        # Never an earlier generation, and never an uncommitted one.
        assert host.shown in self.decided and int(host.shown or -1) >= before
        if step.do in (Do.STAGE, Do.COMMIT, Do.OPEN):
            self.answers.append((step, done))

    def answer(self) -> None:
        self.answers.rotate(self.random.randrange(len(self.answers)))
        step, done = self.answers.popleft()
        if not done:
            self.client(self.rollout.failed(step.host, step.round, "no space"))
        elif step.do is Do.STAGE:
            self.client(self.rollout.staged(step.host, step.round))
        else:
            self.client(self.rollout.shown(step.host, step.round))

    def settle(self) -> None:
        while True:
            busy = [name for name, steps in self.steps.items() if steps]
            if busy and (not self.answers or self.random.random() < 0.5):
                self.deliver(busy)
            elif self.answers:
                self.answer()
            elif not self.rollout.busy:
                return
            else:
                raise AssertionError("a refresh waits for no host")
            if self.lossy and self.random.random() < 0.05 / len(self.names):
                self.fail()

    def fail(self) -> None:
        name = self.random.choice(self.names)
        self.closed(name)
        self.client(self.rollout.lost(name))

    def recover(self) -> None:
        # The caller drops answers of the earlier service.
        for name in sorted(self.down):
            self.down.discard(name)
            self.client(self.rollout.returned(name))


@pytest.mark.parametrize(("seed", "hosts", "rounds"), [*((seed, 5, 30) for seed in range(40)), (100, 1024, 4)])
def test_hosts_agree_though_some_fail_and_are_lost(seed: int, hosts: int, rounds: int) -> None:
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
                assert cluster.hosts[name].shown == cluster.rollout.generation
        cluster.recover()
        cluster.settle()
    # Both outcomes of a refresh have occurred.
    assert hosts > 5 or {outcome.committed for outcome in cluster.outcomes} == {True, False}
    cluster.lossy = False
    cluster.recover()
    cluster.client(cluster.rollout.start(str(rounds + 1)))
    cluster.settle()
    assert cluster.outcomes[-1] == Outcome(str(rounds + 1), True, {})
    assert {host.shown for host in cluster.hosts.values()} == {str(rounds + 1)}
