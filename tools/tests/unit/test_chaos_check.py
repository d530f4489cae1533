"""The checker of chaos runs: a history that keeps every promise passes, and for each promise a violation is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.chaos_actors import History
from bench.chaos_check import check, detection, read

Record = dict[str, Any]


class Story:
    """A history, built line by line. Two processes with a mesh `m1` of the root on them, and `m2`, owned by the first actor of `m1`."""

    def __init__(self, mode: str = "handle") -> None:
        self.records: list[Record] = []
        self.add("spawn_procs", mesh="p", owner="root", size=2)
        self.add("spawn_procs", mesh="q", owner="root", size=2)
        self.add("spawn", mesh="m1", owner="root", procs="p", base=[0, 1], mode=mode)
        self.add("spawn", mesh="m2", owner="m1[0]", procs="q", base=[0, 1], mode="none")
        for mesh in ("m1", "m2"):
            for rank in (0, 1):
                self.add("init", f"{mesh}[{rank}]", mesh=mesh, rank=rank, pid=1)

    def add(self, event: str, who: str = "root", **fields: Any) -> None:
        self.records.append({"t": len(self.records), "e": event, "who": who, **fields})

    def begin(
        self, n: int, kind: str = "call", mesh: str = "m1", ranks: tuple[int, ...] = (0, 1), who: str = "root", **fields: Any
    ) -> None:
        self.add("begin", who, n=n, kind=kind, mesh=mesh, ranks=list(ranks), **fields)

    def handle(self, n: int, rank: int, mesh: str = "m1", sender: str = "root", what: str = "work") -> None:
        self.add("handle", f"{mesh}[{rank}]", mesh=mesh, rank=rank, sender=sender, n=n, what=what)

    def end(self, n: int, *ranks: int, mesh: str = "m1", who: str = "root", **fields: Any) -> None:
        self.add("end", who, n=n, ok=True, answers=[[mesh, rank, n] for rank in ranks], **fields)

    def fail(self, n: int, error: str = "SupervisionError", who: str = "root") -> None:
        self.add("end", who, n=n, ok=False, error=error, text="it died")

    def call(self, n: int, *ranks: int, kind: str = "call", mesh: str = "m1", who: str = "root") -> None:
        self.begin(n, kind, mesh, ranks, who)
        for rank in ranks:
            self.handle(n, rank, mesh, who)
        self.end(n, *ranks, mesh=mesh, who=who)

    def kill(self, rank: int, procs: str = "p") -> None:
        self.add("kill", procs=[[procs, rank]])

    def notice(self, rank: int, mesh: str = "m1", who: str = "root", answer: str = "handle") -> None:
        self.add("notice", who, mesh=mesh, rank=rank, kind="signal", answer=answer)

    def properties(self) -> list[str]:
        return sorted({violation.property for violation in check(self.records)})


def full_of_life(story: Story) -> None:
    story.call(1, 0, 1)
    story.call(2, 1, kind="choose")
    story.begin(3, "broadcast")
    story.end(3)
    story.handle(3, 0)
    story.handle(3, 1)
    story.call(1, 0, 1, mesh="m2", who="m1[0]")
    story.begin(4)
    story.kill(1)
    story.handle(4, 0)
    story.fail(4)
    story.notice(1)
    story.begin(5, "broadcast")
    story.fail(5)
    story.call(6, 0)
    story.kill(1, "q")
    story.notice(1, "m2", "m1[0]")
    story.begin(7, "stream", "m2")
    story.handle(7, 0, "m2")
    story.end(7, 0, mesh="m2", failed=1, errors=["SupervisionError"], text="it died")
    story.begin(8, "call_one", ranks=(0,), expected="ActorError")
    story.handle(8, 0, what="raise")
    story.fail(8, "ActorError")
    story.add("quiet")
    story.begin(9, "stop", "m1", ())
    story.end(9)
    story.add("cleanup", "m1[0]", mesh="m1", rank=0, failed=False)


def test_good_history_passes() -> None:
    story = Story()
    full_of_life(story)
    assert check(story.records) == []


def out_of_order(story: Story) -> None:
    for n in (1, 2):
        story.begin(n, "broadcast", ranks=(0,))
        story.end(n)
    story.handle(2, 0)
    story.handle(1, 0)


def handled_twice(story: Story) -> None:
    story.call(1, 0)
    story.handle(1, 0)


def handled_but_not_sent(story: Story) -> None:
    story.handle(7, 0)


def handled_by_another_rank(story: Story) -> None:
    story.begin(1, "broadcast", ranks=(0,))
    story.end(1)
    story.handle(1, 0)
    story.handle(1, 1)


def chosen_twice(story: Story) -> None:
    story.begin(1, "choose")
    story.handle(1, 0)
    story.handle(1, 1)
    story.end(1, 0)


def answered_but_not_handled(story: Story) -> None:
    story.begin(1, ranks=(0,))
    story.end(1, 0)


def answered_before_it_was_handled(story: Story) -> None:
    story.begin(1, ranks=(0,))
    story.end(1, 0)
    story.handle(1, 0)


def one_answer_of_two(story: Story) -> None:
    story.begin(1)
    story.handle(1, 0)
    story.handle(1, 1)
    story.end(1, 0)


def lost(story: Story) -> None:
    story.begin(1, "broadcast")
    story.end(1)
    story.handle(1, 0)
    story.add("quiet")


def stopped_before_it_was_handled(story: Story) -> None:
    story.begin(1, "broadcast")
    story.end(1)
    story.begin(2, "stop", "p", ())
    story.handle(1, 0)
    for rank in (0, 1):
        story.add("cleanup", f"m1[{rank}]", mesh="m1", rank=rank, failed=False)
    story.end(2)


def told_twice(story: Story) -> None:
    story.kill(1)
    story.notice(1)
    story.notice(1)


def told_of_the_living(story: Story) -> None:
    story.notice(1)


def told_to_the_wrong_one(story: Story) -> None:
    story.kill(1, "q")
    story.notice(1, "m2", "root")


def not_told(story: Story) -> None:
    story.kill(1)
    story.add("quiet")


def owner_not_told(story: Story) -> None:
    story.kill(1, "q")
    story.add("quiet")


def told_of_a_stopped_mesh(story: Story) -> None:
    story.begin(1, "stop", "m1", ())
    story.end(1)
    story.notice(0)


def handled_after_the_notice(story: Story) -> None:
    story.begin(1, "broadcast")
    story.end(1)
    story.kill(1)
    story.notice(1)
    story.handle(1, 1)


def handled_after_clean_up(story: Story) -> None:
    story.begin(1, "broadcast", ranks=(0,))
    story.end(1)
    story.begin(2, "stop", "m1", ())
    story.add("cleanup", "m1[0]", mesh="m1", rank=0, failed=False)
    story.handle(1, 0)
    story.end(2)


def cleaned_up_twice(story: Story) -> None:
    story.begin(1, "stop", "m1", ())
    for _ in range(2):
        story.add("cleanup", "m1[0]", mesh="m1", rank=0, failed=False)
    story.end(1)


def healthy_with_a_dead_member(story: Story) -> None:
    story.kill(1)
    story.notice(1)
    story.begin(1, "choose")
    story.handle(1, 0)
    story.end(1, 0)


def failed_without_a_death(story: Story) -> None:
    story.begin(1, ranks=(0,))
    story.fail(1)


def failed_by_the_death_of_another(story: Story) -> None:
    story.kill(1)
    story.notice(1)
    story.begin(1, ranks=(0,))
    story.fail(1)


def failed_before_the_death(story: Story) -> None:
    story.begin(1, ranks=(1,))
    story.fail(1)
    story.kill(1)
    story.notice(1)


def raised_something_else(story: Story) -> None:
    story.kill(1)
    story.notice(1)
    story.begin(1, ranks=(1,))
    story.fail(1, "KeyError")


def hangs(story: Story) -> None:
    story.begin(1, ranks=(0,))


def an_actor_hangs(story: Story) -> None:
    story.begin(1, mesh="m2", who="m1[0]")


@pytest.mark.parametrize(
    ("bad", "property"),
    [
        (out_of_order, "order"),
        (handled_twice, "once"),
        (handled_but_not_sent, "once"),
        (handled_by_another_rank, "once"),
        (chosen_twice, "once"),
        (answered_but_not_handled, "once"),
        (answered_before_it_was_handled, "once"),
        (one_answer_of_two, "once"),
        (lost, "once"),
        (stopped_before_it_was_handled, "once"),
        (told_twice, "notice"),
        (told_of_the_living, "notice"),
        (told_to_the_wrong_one, "notice"),
        (not_told, "notice"),
        (owner_not_told, "notice"),
        (told_of_a_stopped_mesh, "notice"),
        (handled_after_the_notice, "after"),
        (handled_after_clean_up, "after"),
        (cleaned_up_twice, "after"),
        (healthy_with_a_dead_member, "health"),
        (failed_without_a_death, "health"),
        (failed_by_the_death_of_another, "health"),
        (failed_before_the_death, "health"),
        (raised_something_else, "health"),
        (hangs, "ends"),
        (an_actor_hangs, "ends"),
    ],
)
def test_bad_history_is_found(bad: Callable[[Story], None], property: str) -> None:
    story = Story()
    bad(story)
    assert property in story.properties()
    if property not in ("order", "ends"):
        assert len(story.properties()) <= 2


@pytest.mark.parametrize("mode", ["none", "ignore", "raise"])
def test_death_goes_up_to_its_first_handler(mode: str) -> None:
    story = Story(mode)
    story.begin(1, ranks=(0,))
    story.kill(1, "q")
    if mode != "none":
        story.notice(1, "m2", "m1[0]", mode)
    story.fail(1)
    story.notice(0)
    story.add("quiet")
    assert check(story.records) == []


@pytest.mark.parametrize("mode", ["none", "ignore"])
def test_unhandled_death_must_be_reported_above(mode: str) -> None:
    story = Story(mode)
    story.kill(1, "q")
    if mode != "none":
        story.notice(1, "m2", "m1[0]", mode)
    story.add("quiet")
    assert story.properties() == ["notice"]


def test_calls_of_a_dead_owner_need_no_answer() -> None:
    story = Story()
    story.begin(1, mesh="m2", ranks=(0,))
    story.begin(1, mesh="m2", who="m1[0]")
    story.kill(0)
    story.notice(0)
    story.fail(1)
    assert check(story.records) == []


@pytest.mark.parametrize("mode", ["none", "ignore", "handle"])
def test_actor_stopped_by_another_death_needs_no_notice(mode: str) -> None:
    story = Story("none")
    story.add("spawn_procs", mesh="r", owner="root", size=1)
    story.add("spawn", mesh="m3", owner="m2[1]", procs="r", base=[0], mode="none")
    story.records[3]["mode"] = mode
    story.add("init", "m3[0]", mesh="m3", rank=0, pid=1)
    story.kill(0, "q")
    story.notice(0)
    story.kill(0, "r")
    story.add("quiet")
    assert check(story.records) == []


def test_one_message_may_run_beside_a_death() -> None:
    story = Story("none")
    for n in (1, 2):
        story.begin(n, "broadcast", ranks=(0,))
        story.end(n)
    story.kill(1, "q")
    story.notice(0)
    story.handle(1, 0)
    assert story.properties() == []
    story.handle(2, 0)
    assert story.properties() == ["after"]


def test_detection_is_measured_from_the_kill() -> None:
    story = Story()
    story.begin(1)
    story.kill(1)
    story.fail(1)
    story.notice(1)
    for record in story.records:
        record["t"] *= 1_000_000_000
    assert detection(story.records) == ([1.0], [2.0])


def test_abandoned_call_may_reach_a_dead_actor() -> None:
    story = Story()
    story.kill(1)
    story.notice(1)
    story.begin(1, "abandon")
    story.add("end", n=1, ok=True, answers=None)
    assert story.properties() == []


def test_error_found_by_the_script_is_shown() -> None:
    story = Story()
    story.add("wrong", text="the process of an actor without a thread died")
    assert story.properties() == ["limits"]


def test_truncated_line_was_not_written(tmp_path: Any) -> None:
    path = tmp_path / "history"
    path.write_text('{"t": 1, "e": "quiet", "who": "root"}\n{"t": 2, "e": "qu')
    assert [record["t"] for record in read(path)] == [1]


def test_truncated_line_does_not_affect_others(tmp_path: Any) -> None:
    path = tmp_path / "history"
    History(path, "m1[0]").add("quiet")
    with path.open("a") as file:
        file.write('\n{"t": 2, "e": "qu')
    History(path, "root").add("quiet")
    assert [record["who"] for record in read(path)] == ["m1[0]", "root"]
