"""The notice of a failure: its receivers, its time, and its effect on the owner and on the other ranks."""

from __future__ import annotations

import os
import pickle
import re
from typing import Any

import pytest
from eventually import eventually
from supervision_actors import AsyncCareless, AsyncOwner, Careless, Child, Level, MixedOwner, Owner

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    MonarchError,
    SpawnError,
    SupervisionError,
    endpoint,
    this_host,
    this_proc,
)

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 3})
    yield mesh
    mesh.stop().get()


HANDLING = pytest.mark.parametrize("cls", [Owner, AsyncOwner, MixedOwner])
ALL = pytest.mark.parametrize("cls", [Owner, AsyncOwner])
CARELESS = pytest.mark.parametrize("cls", [Careless, AsyncCareless])


@pytest.fixture
def owner(procs, cls):
    return procs.slice(gpus=0).spawn("owner", cls, procs.slice(gpus=slice(1, 3)))


def news(owner: Any, count: int) -> list[Any]:
    """The failures that the owner has received. Messages of the test are not ordered behind failures of others, so the test queries until
    there are `count`.
    """
    return eventually(f"{count} failures", lambda: owner.told.call_one().get(), lambda seen: len(seen) >= count)


# ---- the receivers of the notice


@HANDLING
def test_owner_is_notified_before_its_next_message(owner, faults):
    text = owner.call_child.call_one("fail", 1).get()
    assert "Endpoint call child.fail() failed, The actor" in text and "SystemExit: 3" in text
    assert owner.told.call_one().get() == [("child", [1])]
    # The owner is notified once, however often the actor is called.
    assert "SystemExit: 3" in owner.call_child.call_one("fail", 1).get()
    assert "no error" == owner.call_child.call_one("rank", 0).get()
    assert owner.told.call_one().get() == [("child", [1])]
    assert faults.empty()


@HANDLING
def test_owner_is_notified_whichever_process_called(owner, faults):
    children, _ = owner.handles.call_one().get()
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        children.slice(gpus=0).fail.call_one().get()
    assert news(owner, 1) == [("child", [0])]
    failure = owner.told_in_full.call_one().get()[0]
    assert isinstance(failure, MeshFailure) and failure.mesh_name == children._name.get() and failure.mesh is None
    assert failure.reason.kind == "raised" and failure.pid != os.getpid() and failure.cause is None
    assert failure.report().startswith(f"The actor {failure.actor} and all its descendants have failed: SystemExit: 3 (pid")
    assert faults.empty()


@HANDLING
def test_every_failed_rank_is_reported_once(owner, faults):
    owner.fail_all.call_one().get()
    children, _ = owner.handles.call_one().get()
    for rank in range(2):
        with pytest.raises(SupervisionError, match="all of them"):
            children.slice(gpus=rank).rank.call_one().get()
    assert sorted(news(owner, 2)) == [("child", [0]), ("child", [1])]
    assert faults.empty()


@HANDLING
def test_hook_runs_as_the_actor_on_its_thread(owner, cls):
    owner.call_child.call_one("fail", 0).get()
    owner.call_child.call_one("fail", 1).get()
    assert len(owner.told.call_one().get()) == 2
    where, threads = owner.told_where.call_one().get()
    name = f"<root>.<supervision_actors.{cls.__name__} owner>"
    assert where == [(name, cls is AsyncOwner)] * 2 and threads == 1


@HANDLING
def test_hook_ignores_own_errors_and_stops(owner, faults):
    with pytest.raises(ActorError, match="my own"):
        owner.own_error.call_one().get()
    owner.stop_other.call_one().get()
    _, other = owner.handles.call_one().get()
    with pytest.raises(SupervisionError, match="stopped: not needed"):
        other.rank.call().get()
    assert owner.told.call_one().get() == []
    owner.own_error.broadcast()
    assert faults.get().name == "owner"


@HANDLING
def test_owner_recovers_by_spawning_again(procs, owner):
    owner.call_child.call_one("fail", 0).get()
    assert owner.respawn.call_one(procs.slice(gpus=slice(1, 3))).get() == [0, 1]
    assert owner.told.call_one().get() == [("child", [0])]


# ---- the time of the notice


@ALL
def test_sync_hook_waits_for_the_message_in_progress(procs, cls):
    owner = procs.slice(gpus=0).spawn("owner", cls, procs.slice(gpus=slice(1, 3)))
    children, _ = owner.handles.call_one().get()
    port, receiver = Channel.open()
    busy = owner.hold.call_one(port)
    queued = owner.told.call_one()
    feed = receiver.recv().get()
    with pytest.raises(SupervisionError):
        children.slice(gpus=1).fail.call_one().get()
    feed.send("go on")
    before, after = busy.get()
    assert before == []
    if cls is Owner:
        assert after == []
    assert queued.get() in ([], [("child", [1])])
    assert news(owner, 1) == [("child", [1])]


@pytest.mark.parametrize("cls", [AsyncOwner, MixedOwner])
def test_async_hook_runs_beside_a_suspended_endpoint(owner):
    children, _ = owner.handles.call_one().get()
    port, receiver = Channel.open()
    waiting = owner.wait_until_told.call_one(port)
    receiver.recv().get()
    with pytest.raises(SupervisionError):
        children.slice(gpus=1).fail.call_one().get()
    # The call returns only because the hook ran meanwhile.
    assert waiting.get() in ([], [("child", [1])])
    assert news(owner, 1) == [("child", [1])]


def test_messages_go_on_while_an_async_hook_waits(procs, faults):
    owner = procs.slice(gpus=0).spawn("owner", AsyncOwner, procs.slice(gpus=slice(1, 3)), ["gate"])
    for rank in range(2):
        owner.call_child.call_one("fail", rank).get()
    # The hook handles one failure at a time: the second waits for the answer to the first.
    assert owner.told.call_one().get() == [("child", [0])]
    owner.open.call_one().get()
    assert news(owner, 4) == [("child", [0]), ("answered", [0]), ("child", [1]), ("answered", [1])]
    assert owner.ping.call_one().get() == "alive" and faults.empty()


# ---- the effect on the owner


@ALL
@pytest.mark.parametrize("answer", [None, False, 0])
def test_falsy_answer_fails_the_owner_and_its_meshes(procs, cls, answer, faults):
    report, reports = Channel.open()
    owner = procs.slice(gpus=0).spawn("owner", cls, procs.slice(gpus=slice(1, 3)), answer, report)
    children, other = owner.handles.call_one().get()
    with pytest.raises(SupervisionError):
        children.slice(gpus=1).fail.call_one().get()
    failure = faults.get()
    assert failure.name == "owner" and failure.crashed_ranks == [0]
    assert failure.cause.name == "child" and failure.cause.crashed_ranks == [1]
    ends = [reports.recv().get() for _ in range(4)]
    assert sum(end is not None and "SystemExit: 3" in end for end in ends) == 1 and ends.count(None) == 3
    with pytest.raises(SupervisionError, match=r"child\{'gpus': 1/2\}.*\n  <root>.*owner> failed because it did not handle") as caught:
        owner.ping.call_one().get()
    assert re.search(r"The actor.*child.*and all its descendants have failed: SystemExit: 3", str(caught.value))
    for mesh in (children.slice(gpus=0), other):
        with pytest.raises(SupervisionError):
            mesh.rank.call().get()
    assert faults.empty()


@CARELESS
def test_no_hook_fails_the_owner(owner, faults):
    children, _ = owner.handles.call_one().get()
    with pytest.raises(SupervisionError):
        children.slice(gpus=0).fail.call_one().get()
    failure = faults.get()
    assert failure.name == "owner" and failure.cause.name == "child"
    with pytest.raises(SupervisionError, match="did not handle a supervision event from its child"):
        owner.ping.call_one().get()


@CARELESS
@pytest.mark.parametrize("method", ["call_child", "call_child_and_raise"])
def test_caller_of_an_endpoint_whose_owner_fails_meanwhile(procs, cls, method):
    for _ in range(10):
        owner = procs.slice(gpus=0).spawn("owner", cls, procs.slice(gpus=slice(1, 3)))
        with pytest.raises(SupervisionError, match="did not handle a supervision event from its child") as caught:
            getattr(owner, method).call_one("fail", 1).get()
        assert not isinstance(caught.value, ActorError) and caught.value.endpoint == f"owner.{method}()"


def test_async_endpoint_is_cancelled_when_its_actor_fails(procs, faults):
    owner = procs.slice(gpus=0).spawn("owner", AsyncCareless, procs.slice(gpus=slice(1, 3)))
    children, _ = owner.handles.call_one().get()
    port, receiver = Channel.open()
    waiting = owner.hold.call_one(port)
    receiver.recv().get()
    with pytest.raises(SupervisionError):
        children.slice(gpus=1).fail.call_one().get()
    with pytest.raises(SupervisionError, match="did not handle"):
        waiting.get()
    assert faults.get().name == "owner"


def test_hook_runs_between_repeated_calls_of_an_endpoint(procs, faults):
    owner = procs.slice(gpus=0).spawn("owner", AsyncOwner, procs.slice(gpus=slice(1, 3)), False)
    children, _ = owner.handles.call_one().get()
    persisting = owner.persist.call_one()
    children.slice(gpus=1).fail.broadcast()
    with pytest.raises(SupervisionError, match="did not handle"):
        persisting.get()
    assert faults.get().name == "owner"


@ALL
def test_hook_that_raises(procs, cls, faults):
    owner = procs.slice(gpus=0).spawn("owner", cls, procs.slice(gpus=slice(1, 3)), "cannot cope")
    children, _ = owner.handles.call_one().get()
    with pytest.raises(SupervisionError):
        children.slice(gpus=0).fail.call_one().get()
    failure = faults.get()
    assert failure.name == "owner" and failure.reason.detail == "RuntimeError: cannot cope" and failure.cause.name == "child"
    lines = failure.report().split("\n")
    assert re.match(r"The actor <root>\.<\S+ owner> and all its descendants have failed: RuntimeError: cannot cope \(pid", lines[0])
    at = lines.index("  This error occurred while handling another failure:")
    assert re.match(r"    The actor <root>.*child.* and all its descendants have failed: SystemExit: 3 \(pid", lines[at + 1])
    with pytest.raises(SupervisionError, match=r"(?s)cannot cope.*SystemExit: 3"):
        owner.ping.call_one().get()


def test_failure_goes_up_until_it_is_handled(procs, faults):
    top = procs.slice(gpus=0).spawn("level3", Level, 3, 3)
    bottom = top.bottom.call_one().get()
    with pytest.raises(SupervisionError, match="at the bottom"):
        bottom.fail.call_one().get()
    seen = news(top, 1)
    assert len(seen) == 1 and faults.empty()
    lines = seen[0].split("\n")
    assert re.match(r"The actor .*level3.*level2.*level1.*level0> and all its descendants have failed: SystemExit: at the bottom", lines[0])
    assert re.match(
        r"  <root>\S* level3>\S* level2>\S* level1> failed because it did not handle", lines[1].replace("<supervision_actors.Level", "<")
    )
    assert re.search(r"level2> failed because it did not handle a supervision event from its child$", lines[2])


def test_unhandled_failure_reaches_the_root(procs, faults):
    top = procs.slice(gpus=0).spawn("level2", Level, 2, 9)
    bottom = top.bottom.call_one().get()
    bottom.fail.broadcast()
    failure = faults.get()
    assert [failure.name, failure.cause.name, failure.cause.cause.name] == ["level2", "level1", "level0"]
    assert failure.report().count("failed because it did not handle") == 2


# ---- health


@pytest.mark.parametrize("way", ["fail", "error"])
def test_health_is_per_slice(procs, faults, way):
    mesh = procs.spawn("child", Child)
    before = mesh.slice(gpus=slice(1, 3))
    if way == "fail":
        with pytest.raises(SupervisionError):
            mesh.slice(gpus=1).fail.call_one().get()
    else:
        mesh.slice(gpus=1).error.broadcast()
    assert faults.get().crashed_ranks == [1]
    for part in (mesh, before, mesh.slice(gpus=1), mesh.slice(gpus=slice(0, 2)), before.slice(gpus=0), mesh.flatten("x").slice(x=1)):
        with pytest.raises(SupervisionError):
            part.rank.call().get()
    for part in (mesh.slice(gpus=0), mesh.slice(gpus=slice(0, 3, 2)), before.slice(gpus=1)):
        part.rank.call().get()
    assert procs.spawn("child", Child).rank.call().get().values() == [0, 1, 2]


def test_lost_process(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    one, two = mesh.spawn("one", Child), mesh.spawn("two", Child)
    owner = mesh.slice(gpus=0).spawn("owner", AsyncOwner, mesh)
    owner.ping.call_one().get()
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        one.slice(gpus=1).kill.call_one().get()
    assert sorted([faults.get().name, faults.get().name]) == ["one", "two"]
    # The other owner is notified of its own meshes.
    assert sorted(news(owner, 2)) == [("child", [1]), ("other", [1])]
    assert two.slice(gpus=0).rank.call_one().get() == 0
    late = mesh.spawn("late", Child)
    with pytest.raises(SpawnError, match=r"error spawning actor mesh late: the process this actor was running on failed: Killed\(sig=9\)"):
        late.initialized.get()
    assert late.slice(gpus=0).rank.call_one().get() == 0
    mesh.stop().get()
    assert faults.empty() and issubclass(SpawnError, SupervisionError)


def test_lost_process_without_actors_of_its_owner(faults):
    mesh = this_host().spawn_procs(name="bare")

    class Outsider(Actor):
        """Is in another process and owns an actor on procs that are not its own."""

        def __init__(self, procs: Any) -> None:
            self.seen: list[Any] = []
            self.child = procs.spawn("child", Child)

        @endpoint
        def kill(self) -> str:
            try:
                self.child.kill.call_one().get()
            except SupervisionError as e:
                return e.failure.reason.kind
            return "alive"

        @endpoint
        def told(self) -> Any:
            return self.seen

        def __supervise__(self, failure: MeshFailure) -> bool:
            self.seen.append(failure.name)
            return True

    outsider = this_proc().spawn("outsider", Outsider, mesh)
    assert outsider.kill.call_one().get() == "signal"
    assert outsider.told.call_one().get() == ["child"]
    failure = faults.get()
    assert failure.name == "bare" and failure.reason.kind == "signal" and failure.crashed_ranks == [0]
    outsider.stop().get()
    mesh.stop().get()
    assert faults.empty()


# ---- exception classes


def test_failures_and_errors_pickle(procs, faults):
    mesh = procs.spawn("child", Child)
    with pytest.raises(SupervisionError) as caught:
        mesh.slice(gpus=1).fail.call_one().get()
    failure = faults.get()
    again = pickle.loads(pickle.dumps(failure))
    assert again == failure and again.report() == failure.report() and again.reason == failure.reason
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is SupervisionError and str(error) == str(caught.value) and error.failure == caught.value.failure
    assert isinstance(error, MonarchError) and error.code == "raised" and error.hint
    with pytest.raises(ActorError) as other:
        mesh.slice(gpus=0).error.call_one().get()
    twin = pickle.loads(pickle.dumps(other.value))
    assert str(twin) == str(other.value) and isinstance(twin.exception, ValueError)
