"""`ProcMesh.logging_option`: levels, and similar lines that are counted in windows."""

from __future__ import annotations

import logging
import re
import textwrap

import pytest
from fresh import lines, run

from monarch.actor import this_host

HEAD = """
import asyncio, os, sys, threading
from mesh_actors import Probe
from monarch.actor import Actor, endpoint, this_host
from monarch.config import configure, configured

def spawn(n=2, name="probe"):
    mesh = this_host().spawn_procs({"gpus": n})
    return mesh, mesh.spawn(name, Probe)

def option(mesh, window=None, **more):
    asyncio.run(mesh.logging_option(aggregate_window_sec=window, **more))

def mark(word):
    os.write(1, word.encode() + b"\\n")
"""


def script(body, **options):
    return run(HEAD + textwrap.dedent(body), **options)


def counted(text):
    """The sample lines without their ranks, with their counts; each line of the text must be of this kind."""
    found: dict[str, int] = {}
    for line in lines(text):
        match = re.fullmatch(r"\[(\d+) similar log lines\] (?:\[\d+\] )?(.*)", line)
        assert match, text
        found[match[2]] = found.get(match[2], 0) + int(match[1])
    return found


@pytest.fixture
def procs():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


@pytest.mark.asyncio
@pytest.mark.parametrize("level", [-1, 256])
async def test_level_out_of_range(procs, level):
    with pytest.raises(ValueError, match=f"invalid logging level {level}"):
        await procs.logging_option(level=level)


@pytest.mark.asyncio
@pytest.mark.parametrize("window", [0, -1, float("nan"), float("inf")])
async def test_window_that_is_none(procs, window):
    with pytest.raises(ValueError, match="invalid aggregate_window_sec"):
        await procs.logging_option(aggregate_window_sec=window)


@pytest.mark.asyncio
async def test_level_is_set_in_the_procs(procs):
    from mesh_actors import Probe

    probe = procs.spawn("probe", Probe)
    ask = "__import__('logging').getLogger().level"
    for level in (0, logging.ERROR, 255):
        await procs.logging_option(level=level)
        assert set((await probe.evaluate.call(ask)).values()) == {level}
    # A slice changes only its own procs, and the default is INFO.
    await procs.slice(gpus=1).logging_option()
    assert list((await probe.evaluate.call(ask)).values()) == [255, logging.INFO]


def test_lines_of_all_procs_are_counted_together():
    done = script("""
        mesh, probe = spawn()
        option(mesh, 3600)
        for i in range(5):
            probe.say.call(f"step {i} took {i / 7}", "the same").get()
        option(mesh)
        mark("flushed")
        for i in range(5):
            probe.say.call(f"step {i} took {i / 7}").get()
    """)
    before, after = done.stdout.split("flushed\n")
    assert sorted(counted(before).values()) == [10, 10]
    assert re.search(r"^\[10 similar log lines\] \[[01]\] step 0 took 0.0$", before, re.M), before
    assert sorted(lines(after)) == sorted(f"[{rank}] step {i} took {i / 7}" for rank in range(2) for i in range(5))
    assert done.stderr == ""


def test_aggregation_windows_end_without_a_call():
    done = script("""
        mesh, probe = spawn(1)
        read, write = os.pipe()
        console = os.dup(1)
        os.dup2(write, 1)
        option(mesh, 0.05)
        out = os.fdopen(read)
        for word in ("one", "two"):
            probe.say.call(word).get()
            print(repr(out.readline()), file=sys.stderr)
        os.dup2(console, 1)
        out.close()
    """)
    assert lines(done.stderr) == [repr(f"[1 similar log lines] [0] {word}\n") for word in ("one", "two")]


@pytest.mark.parametrize(
    "end",
    ["mesh.stop().get(); mark('end')", "this_host().shutdown().get(); mark('end')", "", "sys.exit(0)", "mesh = probe = None"],
    ids=["stop", "shutdown", "fast exit", "sys.exit", "handles dropped"],
)
def test_counted_lines_are_delivered_at_the_end(end):
    done = script(f"""
        mesh, probe = spawn()
        option(mesh, 3600)
        probe.say.broadcast(*[f"line {{i}}" for i in range(6)])
        {end}
    """)
    assert done.stdout.removesuffix("end\n") != done.stdout or "mark" not in end
    assert counted(done.stdout.removesuffix("end\n")) == {"line 0": 12}


def test_output_of_killed_procs_is_counted():
    done = script("""
        import monarch.actor
        monarch.actor.unhandled_fault_hook = lambda failure: None
        mesh, probe = spawn()
        option(mesh, 3600)
        try:
            probe.say_and_die.call("last words").get()
        except Exception:
            pass
        mesh.stop().get()
        mark("end")
    """)
    assert counted(done.stdout.removesuffix("end\n")) == {"last words": 2}


def test_meshes_have_windows_of_their_own():
    done = script("""
        first, a = spawn()
        second, b = spawn()
        third, c = spawn()
        option(first, 3600)
        option(second, 7200)
        for i in range(3):
            a.say.call(f"same {i}").get(), b.say.call(f"same {i}").get(), c.say.call(f"same {i}").get()
        second.stop().get()
        mark("second")
        third.stop().get()
        option(first)
        mark("first")
        a.say.call("shown").get()
    """)
    early, rest = done.stdout.split("second\n")
    mid, late = rest.split("first\n")
    plain = [line for line in lines(early) if "similar" not in line]
    assert sorted(plain) == sorted(f"[{rank}] same {i}" for rank in range(2) for i in range(3))
    assert [line[:23] for line in lines(early) if "similar" in line] == ["[6 similar log lines] ["]
    assert counted(mid) == {"same 0": 6}
    assert sorted(lines(late)) == ["[0] shown", "[1] shown"]


def test_streams_are_counted_apart():
    done = script("""
        mesh, probe = spawn(1)
        option(mesh, 3600)
        probe.say.call("x 1").get(), probe.complain.call("x 2").get(), probe.say.call("x 3").get()
    """)
    assert (done.stdout, done.stderr) == ("[2 similar log lines] [0] x 1\n", "[1 similar log lines] [0] x 2\n")


def test_option_of_a_slice_counts_its_procs():
    done = script("""
        mesh, probe = spawn(3)
        option(mesh.slice(gpus=slice(1, 3)), 3600)
        probe.say.call("x").get()
        mesh.stop().get()
    """)
    assert lines(done.stdout)[0] == "[0] x"
    assert counted("\n".join(lines(done.stdout)[1:]) + "\n") == {"x": 2}


def test_logging_option_works_in_actors_on_pending_meshes():
    done = script("""
        class Asks(Actor):
            @endpoint
            async def ask(self, mesh):
                await mesh.logging_option(True, 3600)
                probe = mesh.spawn("deep", Probe)
                await probe.say.call("from below 1")
                mine = this_host().spawn_procs({"gpus": 3})
                await mine.logging_option(aggregate_window_sec=3600)
                await mine.spawn("deeper", Probe).say.call("from far below")

        mesh, probe = spawn()
        this_host().spawn_procs().spawn("asks", Asks).ask.call_one(mesh).get()
        probe.say.call("from below 2").get()
        mesh.stop().get()
        mark("end")
    """)
    above, below = done.stdout.split("end\n")
    assert sorted(counted(above + below).items()) == [("from below 1", 4), ("from far below", 3)]
    assert counted(above)["from below 1"] == 4


def test_many_flushes_at_once_end():
    done = script("""
        meshes = [spawn(1) for _ in range(3)]
        def work(mesh, probe, offset):
            for i in range(12):
                option(mesh, [None, 3600, 0.01][(i + offset) % 3])
                probe.say.call("line").get()
        threads = [threading.Thread(target=work, args=(*pair, n)) for pair in meshes for n in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    """)
    count = 0
    for line in lines(done.stdout):
        match = re.fullmatch(r"(?:\[(\d+) similar log lines\] )?\[0\] line", line)
        assert match, line
        count += int(match[1] or 1)
    assert count == 3 * 2 * 12
    assert done.stderr == ""


def test_blocked_console_delays_flush_and_exit_within_bounds():
    """No process reads the console: everything still ends, by itself, with the right code."""
    done = script(
        """
        read, write = os.pipe()
        os.dup2(write, 1)
        mesh, probe = spawn(1)
        option(mesh, 3600)
        probe.evaluate.call("[print('a' * (1 + i % 50) + ' ' + 'y' * 2000) for i in range(100)] and None").get()
        option(mesh)
        print("flushed", file=sys.stderr)
        sys.exit(7)
        """,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "flushed\n")
