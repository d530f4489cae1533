"""The test kit: doubles, fresh interpreters, simulated time, and leftovers."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import pytest
from fresh_script import run

from monarch.actor import Actor, endpoint, this_host, this_proc
from monarch.actor import testing as kit
from monarch.actor.testing import Universe, assert_clean, hold_gil, isolated, patch_actor, patch_tensor_engine
from monarch.config import configured, get_global_config


class Real(Actor):
    @endpoint
    def kind(self):
        return "real"

    @endpoint
    def spawn_in(self, name):
        """The kind of a nested actor, in a process of its own."""
        return this_host().spawn_procs().spawn(name, Real).kind.call_one().get()


class Double(Actor):
    def __init__(self, *args):
        pass

    @endpoint
    def kind(self):
        return "double"


class Other(Double):
    @endpoint
    def kind(self):
        return "other"


class Outer(Actor):
    @endpoint
    def kind_of_nested(self):
        return this_proc().spawn("nested", Real).kind.call_one().get()

    @endpoint
    def kind_of_distant(self):
        with this_host().spawn_procs() as procs:
            return procs.spawn("outer", Outer).kind_of_nested.call_one().get()

    @endpoint
    def activated(self):
        return this_proc().activate()


@pytest.fixture(scope="module")
def before():
    """Processes that existed before any patch."""
    with this_host().spawn_procs() as procs:
        yield procs


@pytest.fixture(autouse=True)
def nothing_is_left_patched():
    yield
    assert kit.get_actor_mock_registry_state() == {} == kit.get_tensor_engine_mock_registry_state()


def kind(where=None):
    mesh = (where or this_proc()).spawn("a", Real)
    try:
        return mesh.kind.call_one().get()
    finally:
        mesh.stop().get()


# ---- patch_actor


def test_every_spawn_builds_the_double(before):
    with patch_actor(Real, Double) as given:
        assert given is Double
        assert kind() == kind(before) == "double"
    assert kind() == kind(before) == "real"


def test_attributes():
    patch = patch_actor(Real, Double)
    assert (patch.original, patch.mock) == (Real, Double)
    for wrong in (lambda: patch_actor(int, Double), lambda: patch_actor(Real, int), lambda: patch_tensor_engine(int)):
        with pytest.raises(TypeError, match="must be a subclass of Actor"):
            wrong()


def test_double_may_have_other_arguments():
    with patch_actor(Real, Double):
        mesh = this_proc().spawn("a", Real, 1, 2)
        assert mesh.kind.call_one().get() == "double"
        mesh.stop().get()


def test_inner_wins_and_outer_is_restored():
    with patch_actor(Real, Double) as outer:
        with patch_actor(Real, Other):
            assert kind() == "other"
        assert kind() == "double"
        patch = patch_actor(Real, Other)
        with patch, patch:
            assert kind() == "other"
        assert kit.get_actor_class(Real) is outer
    assert kit.get_actor_class(Real) is Real


def test_removed_after_an_exception():
    with pytest.raises(KeyError), patch_actor(Real, Double):
        raise KeyError
    assert kind() == "real"


def test_async_context_manager_and_decorators():
    async def main():
        async with patch_actor(Real, Double) as given:
            assert given is Double
            return kit.get_actor_class(Real)

    assert asyncio.run(main()) is Double

    @patch_actor(Real, Double)
    def decorated(expected, *, again=False):
        """Kept."""
        assert kit.get_actor_class(Real) is expected
        return kind() if not again else decorated(expected)

    assert decorated(Double) == decorated(Double, again=True) == "double"
    assert (decorated.__name__, decorated.__doc__) == ("decorated", "Kept.")

    @patch_actor(Real, Double)
    async def decorated_async():
        await asyncio.sleep(0)
        return kit.get_actor_class(Real)

    async def together():
        return await asyncio.gather(decorated_async(), decorated_async())

    assert asyncio.run(together()) == [Double, Double]


def test_double_reaches_new_and_nested_processes(before):
    old = before.spawn("outer", Outer)
    old.kind_of_nested.call_one().get()
    with patch_actor(Real, Double), this_host().spawn_procs() as procs:
        new = procs.spawn("outer", Outer)
        assert new.kind_of_nested.call_one().get() == "double"
        assert new.kind_of_distant.call_one().get() == "double"
        # Earlier processes, and their spawns, are not patched.
        assert old.kind_of_nested.call_one().get() == "real"
        assert old.kind_of_distant.call_one().get() == "real"
    old.stop().get()


def test_classes_of_a_script():
    run(
        """
        from monarch.actor.testing import patch_actor
        class Real(Actor):
            @endpoint
            def kind(self):
                return "real"
        class Double(Actor):
            @endpoint
            def kind(self):
                return "double"
        class Outer(Actor):
            @endpoint
            def nested(self, deep):
                if deep:
                    return this_host().spawn_procs().spawn("outer", Outer).nested.call_one(deep - 1).get()
                return this_proc().spawn("real", Real).kind.call_one().get()
        with patch_actor(Real, Double):
            outer = this_host().spawn_procs().spawn("outer", Outer)
            assert [outer.nested.call_one(i).get() for i in range(3)] == ["double"] * 3
        """
    ).assert_clean()


def test_unpatched_code_does_not_load_it():
    run(
        """
        class Look(Actor):
            @endpoint
            def loaded(self):
                return "monarch._core.testing.patching" in sys.modules
        assert not this_host().spawn_procs().spawn("look", Look).loaded.call_one().get()
        assert "monarch._core.testing.patching" not in sys.modules
        """
    ).assert_clean()


# ---- patch_tensor_engine and the registries


def factory(proc_mesh):
    return "engine", proc_mesh.sizes


def test_tensor_engine(before):
    with patch_tensor_engine(Outer, factory) as given:
        assert given is factory
        assert kit.get_tensor_engine_factory(Outer) is factory
        assert kit.get_tensor_engine_factory(Real) is None
        local = this_proc().spawn("outer", Outer)
        assert local.activated.call_one().get() == ("engine", {})
        with this_host().spawn_procs() as procs:
            assert procs.spawn("outer", Outer).activated.call_one().get() == ("engine", {})
        local.stop().get()
    with pytest.raises(NotImplementedError, match="monarch-tensor"):
        this_proc().activate()


def test_tensor_engine_by_default_needs_its_wheel():
    patch = patch_tensor_engine(Outer)
    assert patch.actor_class is Outer
    with patch as simulated, pytest.raises(NotImplementedError, match="needs the wheel monarch-tensor, which is not installed"):
        simulated(this_proc())


def test_registries_are_copies_and_can_be_set():
    state = kit.get_actor_mock_registry_state()
    state[Real] = Double
    assert kit.get_actor_class(Real) is Real
    kit.set_actor_mock_registry_state(state)
    assert kit.get_actor_class(Real) is Double
    kit.set_actor_mock_registry_state({})
    kit.set_tensor_engine_mock_registry_state({Real: factory})
    assert kit.get_tensor_engine_mock_registry_state() == {Real: factory}
    kit.set_tensor_engine_mock_registry_state({})


# ---- isolated


@isolated
def add(a, b=2):
    print("in", os.getpid())
    print("oops", file=sys.stderr)
    return a + b, os.getpid()


@isolated
def fail(error):
    raise error


@isolated
def leave(code):
    sys.exit(code)


@isolated
async def add_async(a, b):
    await asyncio.sleep(0)
    return a + b


@isolated
def setting(name):
    return get_global_config()[name]


@isolated
def use_monarch():
    with this_host().spawn_procs() as procs:
        return procs.spawn("real", Real).kind.call_one().get()


def test_isolated_result_and_output(capsys):
    total, pid = add(1, b=3)
    assert total == 4 and pid != os.getpid()
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"in {pid}\n", "oops\n")
    assert add.__name__ == "add"


def test_isolated_exception():
    with pytest.raises(KeyError, match="lost"):
        fail(KeyError("lost"))


@pytest.mark.parametrize("code", [0, 3])
def test_isolated_exit_code(code):
    with pytest.raises(SystemExit) as caught:
        leave(code)
    assert caught.value.code == code


def test_isolated_signal():
    @isolated
    def die():
        os.kill(os.getpid(), 9)

    with pytest.raises(SystemExit) as caught:
        die()
    assert caught.value.code == 128 + 9


def test_isolated_async():
    assert asyncio.run(add_async(1, 2)) == 3


def test_isolated_has_the_same_configuration():
    with configured(tail_log_lines=7):
        assert setting("tail_log_lines") == 7
    assert setting("tail_log_lines") == get_global_config()["tail_log_lines"]


def test_isolated_local_function_and_use_of_monarch():
    factor = 5

    @isolated
    def scaled(x):
        return factor * x

    assert scaled(3) == 15
    assert use_monarch() == "real"


# ---- hold_gil


def test_hold_gil():
    # While another thread has the GIL, this one does not run: the whole time passes between two reads of the clock.
    run(
        """
        from monarch.actor.testing import hold_gil
        begin = time.monotonic()
        hold_gil(0.0, 0.3)
        longest = 0.0
        while longest < 0.29:
            end = time.monotonic()
            longest, begin = max(longest, end - begin), end
        """
    ).assert_clean()
    assert callable(hold_gil) and time.monotonic() and threading.active_count()


# ---- Universe


def test_time_jumps():
    seen = []
    with Universe() as universe:
        assert universe.clock.now() == 0.0
        universe.later(3600.0, lambda: seen.append(("hour", universe.clock.now())))
        universe.later(1.0, lambda: universe.later(2.0, lambda: seen.append(("nested", universe.clock.now()))))
        universe.later(1.0, lambda: seen.append(("first", universe.clock.now())))
        universe.run_until_idle()
        assert seen == [("first", 1.0), ("nested", 3.0), ("hour", 3600.0)]
        assert universe.clock.now() == 3600.0


def test_time_stands_still_until_asked():
    seen = []
    universe = Universe()
    universe.later(5.0, lambda: seen.append(1))
    universe.run_for(4.0)
    assert (seen, universe.clock.now()) == ([], 4.0)
    universe.run_for(4.0)
    assert (seen, universe.clock.now()) == ([1], 8.0)
    with Universe() as other:
        assert other.clock.now() == 0.0


def test_errors_come_out():
    universe = Universe()
    universe.later(1.0, lambda: 1 / 0)
    universe.later(2.0, lambda: None)
    with pytest.raises(ZeroDivisionError):
        universe.run_until_idle()
    assert universe.clock.now() == 2.0
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="invalid time"):
            universe.later(wrong, lambda: None)


# ---- assert_clean


def test_clean_with_and_without_a_client():
    run(
        """
        from monarch.actor import shutdown_context
        from monarch.actor.testing import assert_clean
        def left():
            try:
                assert_clean()
            except AssertionError as e:
                return str(e)
            return ""
        assert left() == ""
        with this_host().spawn_procs(per_host={"procs": 2}) as procs:
            procs.initialized.get()
            assert left().startswith("left behind:\\n") and left().count("  process ") == 2, left()
        assert left() == ""
        local = this_proc().spawn("local", Echo)
        local.echo.call_one(1).get()
        assert "thread actor local" in left()
        local.stop().get()
        eventually("the actor's thread has ended", left, lambda text: "thread actor local" not in text)
        import socket, tempfile
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as s:
            s.bind(folder + "/a")
            s.listen()
            assert f"socket {folder}/a" in left()
        assert left() == ""
        gate = threading.Event()
        t = threading.Thread(target=gate.wait, name="mine")
        t.start()
        assert "thread mine" in left()
        gate.set()
        t.join()
        shutdown_context().get()
        assert left() == "", left()
        """
    ).assert_clean()


def test_children_are_named():
    run(
        """
        import subprocess
        from monarch.actor.testing import assert_clean
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdin.write(b"there\\n")
        child.stdin.flush()
        child.stdout.readline()
        try:
            assert_clean()
        except AssertionError as e:
            assert f"process {child.pid}: cat" in str(e)
        else:
            raise SystemExit("not seen")
        child.communicate()
        assert_clean()
        """
    ).assert_clean()


def test_public_names():
    assert sorted(kit.__all__) == kit.__all__
    assert all(hasattr(kit, name) for name in kit.__all__)
    assert callable(assert_clean)
