"""The context: identities, ranks, creators, in actors, tasks and threads."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest
from fresh import lines, run

from monarch.actor import (
    Actor,
    ActorAddr,
    ProcId,
    SupervisionError,
    Uid,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_host,
    this_proc,
)


class Member(Actor):
    def __init__(self):
        instance = context().actor_instance
        self.at_init = (dict(current_rank()), current_size(), str(instance), dict(instance.rank))

    @endpoint
    def init(self):
        return self.at_init

    @endpoint
    def ranks(self):
        return dict(current_rank()), current_size(), current_rank().rank, context().actor_instance.rank

    @endpoint
    def identity(self):
        i = context().actor_instance
        return {
            "name": i.name,
            "class_name": i.class_name,
            "display": str(i),
            "actor": i.actor_id,
            "proc_id": i.proc_id,
            "current": current_actor_name(),
            "creator": i.creator,
            "proc": i.proc,
            "proc_mesh": i.proc_mesh,
        }

    @endpoint
    def in_a_thread(self):
        import threading

        found = []
        thread = threading.Thread(target=lambda: found.append((str(context().actor_instance), dict(current_rank()))))
        thread.start()
        thread.join()
        return found[0]

    @endpoint
    def call_from_a_thread(self, handle):
        import threading

        found = []
        thread = threading.Thread(target=lambda: found.append(handle.ranks.call().get()))
        thread.start()
        thread.join()
        return len(found[0])

    @endpoint
    def make(self, name):
        self.child = context().actor_instance.proc.spawn(name, Member)
        return self.child

    @endpoint
    def is_client(self):
        from monarch._core.process.current import current_process

        return current_process().is_client

    @endpoint
    def abort(self, reason):
        context().actor_instance.abort(reason)
        return "answered"

    @endpoint
    def kill(self):
        context().actor_instance.kill()

    @endpoint
    def end(self):
        context().actor_instance.stop("had enough")
        return "answered"


class AsyncMember(Actor):
    @endpoint
    async def ranks_in_tasks(self):
        import asyncio

        async def look():
            await asyncio.sleep(0)
            return dict(current_rank()), str(context().actor_instance)

        return await asyncio.gather(look(), asyncio.create_task(look()))


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}, name="procs") as mesh:
        yield mesh


@pytest.fixture(scope="module")
def members(procs):
    return procs.spawn("Member 1", Member)


def test_root():
    root = context().actor_instance
    assert str(root) == "<root>"
    assert (root.name, root.class_name, root.creator) == ("root", None, None)
    assert (dict(current_rank()), current_size(), len(current_rank().extent)) == ({}, {}, 0)
    assert root.rank.rank == 0
    assert current_actor_name() == str(root.actor_id)
    assert root.actor_id.label == "client"
    assert this_proc() == root.proc == root.proc_mesh
    with pytest.raises(RuntimeError):
        root.abort()


def test_ranks_are_relative_to_the_addressed_slice(members):
    found = members.ranks.call().get()
    assert [v[0] for v in found.values()] == [{"hosts": h, "gpus": g} for h in range(2) for g in range(2)]
    assert {str(v[1]) for v in found.values()} == {"{'hosts': 2, 'gpus': 2}"}
    column = members.slice(gpus=1)
    found = column.ranks.call().get()
    assert [v[0] for v in found.values()] == [{"hosts": 0}, {"hosts": 1}]
    assert [v[2] for v in found.values()] == [0, 1]
    assert [dict(v[3]) for v in found.values()] == [{"hosts": h, "gpus": 1} for h in range(2)]
    single = members.slice(hosts=1, gpus=0).ranks.call_one().get()
    assert (single[0], single[1], dict(single[3])) == ({}, {}, {"hosts": 1, "gpus": 0})
    flat = members.flatten("rank").slice(rank=slice(1, None, 2)).ranks.call().get()
    assert [v[0] for v in flat.values()] == [{"rank": 0}, {"rank": 1}]
    assert [dict(p) for p, _ in flat.items()] == [{"rank": 0}, {"rank": 1}]
    chosen = members.slice(hosts=1).ranks.choose().get()
    assert chosen[0] in ({"gpus": 0}, {"gpus": 1})
    assert chosen[3]["hosts"] == 1


def test_message_rank_in_init_is_the_spawns(members):
    (last,) = members.slice(hosts=1, gpus=1).init.call().get().values()
    assert last == (
        {"hosts": 1, "gpus": 1},
        {"hosts": 2, "gpus": 2},
        f"<root>.<{__name__}.Member Member 1{{'hosts': 1/2, 'gpus': 1/2}}>",
        {"hosts": 1, "gpus": 1},
    )


def test_identity_of_an_actor(members, procs):
    one = members.slice(hosts=1, gpus=0).identity.call_one().get()
    assert (one["name"], one["class_name"]) == ("Member 1", f"{__name__}.Member")
    assert one["display"] == f"<root>.<{__name__}.Member Member 1{{'hosts': 1/2, 'gpus': 0/2}}>"
    assert one["actor"].label == "member1"
    assert one["current"] == str(one["actor"])
    assert one["proc_id"] == one["actor"].proc_name
    assert one["proc_mesh"] == procs
    assert one["proc"].sizes == {}
    assert one["proc"] == procs.slice(hosts=1, gpus=0)
    assert (one["creator"].name, one["creator"].class_name, one["creator"].creator) == ("root", None, None)
    assert members._name.get().startswith("member1-")


def test_actors_of_a_mesh_have_distinct_addresses(members):
    addresses = [v["actor"] for v in members.identity.call().get().values()]
    assert len({str(a) for a in addresses}) == 4
    for address in addresses:
        assert ActorAddr.from_string(str(address)) == address
        assert pickle.loads(pickle.dumps(address)) == address


def test_creators_form_a_chain(members):
    first = members.slice(hosts=0, gpus=1)
    child = first.make.call_one("child").get()
    found = child.identity.call_one().get()
    parent = f"<root>.<{__name__}.Member Member 1{{'hosts': 0/2, 'gpus': 1/2}}>"
    assert found["display"] == f"{parent}.<{__name__}.Member child>"
    creator = found["creator"]
    assert (creator.name, creator.class_name, dict(creator.rank)) == ("Member 1", f"{__name__}.Member", {"hosts": 0, "gpus": 1})
    assert creator.creator.name == "root"


def test_classes_of_functions_show_their_qualified_name(procs):
    class Local(Actor):
        @endpoint
        def display(self):
            return str(context().actor_instance)

    actor = procs.slice(hosts=0, gpus=0).spawn("local", Local)
    name = "test_classes_of_functions_show_their_qualified_name"
    assert actor.display.call_one().get() == f"<root>.<{__name__}.{name}.Local local>"


def test_tasks_inherit_the_context(procs):
    actor = procs.slice(hosts=1).spawn("async", AsyncMember)
    found = actor.slice(gpus=1).ranks_in_tasks.call_one().get()
    display = f"<root>.<{__name__}.AsyncMember async{{'gpus': 1/2}}>"
    assert found == [({}, display)] * 2


def test_threads_in_a_proc_never_start_a_client():
    with this_host().spawn_procs() as mesh:
        only = mesh.spawn("only", Member)
        display, _ = only.in_a_thread.call_one().get()
        assert display == f"<root>.<{__name__}.Member only>"
        second = mesh.spawn("second", Member)
        second.init.call_one().get()
        # With several actors the context is that of the proc itself.
        display, _ = only.in_a_thread.call_one().get()
        assert display not in ("<root>", f"<root>.<{__name__}.Member only>")
        assert only.call_from_a_thread.call_one(second).get() == 1
        assert only.is_client.call_one().get() is False


def test_abort_answers_the_call_then_fails():
    with this_host().spawn_procs() as mesh:
        actor = mesh.spawn("short", Member)
        pending = actor.abort.call_one("no more")
        later = actor.ranks.call_one()
        assert pending.get() == "answered"
        with pytest.raises(SupervisionError, match="actor explicitly aborted due to: no more"):
            later.get()
        other = mesh.spawn("other", Member)
        pending, later = other.kill.call_one(), other.ranks.call_one()
        assert pending.get() is None
        with pytest.raises(SupervisionError, match=r"actor explicitly aborted due to: \(no reason provided\)"):
            later.get()


def test_stop_of_oneself_is_graceful():
    with this_host().spawn_procs() as mesh:
        actor = mesh.spawn("short", Member)
        futures = [actor.ranks.call_one(), actor.end.call_one(), actor.ranks.call_one()]
        assert futures[1].get() == "answered"
        futures[2].exception()
        with pytest.raises(SupervisionError, match="stopped: had enough"):
            actor.ranks.call_one().get()
        mesh.spawn("next", Member).ranks.call_one().get()


def test_one_root_for_all_threads_and_loops():
    found = [str(context().actor_instance.actor_id)]
    thread = threading.Thread(target=lambda: found.append(str(context().actor_instance.actor_id)))
    thread.start()
    thread.join()

    async def look():
        found.append(str(context().actor_instance.actor_id))

    asyncio.run(look())
    assert len(set(found)) == 1


def test_identity_types():
    uid = Uid.instance("My Label!")
    assert (uid.label, uid.is_instance, uid.is_singleton) == ("mylabel", True, False)
    assert Uid.from_string(str(uid)) == uid == Uid.instance_from_value(uid.instance_value, "mylabel")
    assert hash(Uid.from_string(str(uid))) == hash(uid)
    assert str(Uid.anonymous()).startswith("<")
    assert Uid.from_string("word").is_singleton
    proc = ProcId(uid)
    assert (proc.uid, proc.label, ProcId.from_string(str(proc))) == (uid, "mylabel", proc)
    for value in (uid, proc, Uid.from_string("word")):
        assert pickle.loads(pickle.dumps(value)) == value


def test_forked_child_is_inert():
    done = run("""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from monarch.actor import context, this_host
        from mesh_actors import Probe
        actor = this_host().spawn_procs().spawn("probe", Probe)
        actor.pid.call_one().get()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for use in (context, lambda: actor.pid.call_one().get(), this_host):
                try:
                    use()
                    print("no error")
                except RuntimeError as e:
                    print(str(os.getppid()) in str(e), "spawn" in str(e), "forkserver" in str(e))
            sys.exit(0)
        print(os.waitpid(pid, 0)[1], actor.pid.call_one().get() > 0)
    """)
    assert lines(done.stdout) == ["True True True"] * 3 + ["0 True"]
    assert done.stderr == ""


def test_has_context_starts_no_client() -> None:
    done = run("""
        from monarch.actor import Actor, context, endpoint, has_context, this_host

        class Asks(Actor):
            @endpoint
            def ask(self):
                return has_context()

        print(has_context(), has_context(), context().actor_instance is not None, has_context())
        print(this_host().spawn_procs().spawn("asks", Asks).ask.call_one().get())
    """)
    assert lines(done.stdout) == ["False False True True", "True"]
