"""The runtime's own log: events with stable names, in a file on request, and nothing on stderr without a problem."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import textwrap

import pytest
from eventually import SOURCE
from fresh import lines, run

HEAD = f"""
{SOURCE}from mesh_actors import Probe
from monarch.actor import Actor, SupervisionError, endpoint, this_host, this_proc
from monarch.config import configure
import monarch.actor
import asyncio, os, signal, sys
def spawn(n=1):
    mesh = this_host().spawn_procs({{"gpus": n}}, name="work")
    return mesh, mesh.spawn("probe", Probe)
"""

FIRST = ["time", "level", "event", "host", "pid", "proc"]


def script(body, folder=None, level="debug", **options):
    env = {"MONARCH_FILE_LOG": level, "MONARCH_LOG_DIR": str(folder)} if folder else {}
    return run(HEAD + textwrap.dedent(body), env={**env, **options.pop("env", {})}, **options)


def events(folder, name=None):
    (path,) = folder.rglob("runtime.jsonl")
    found = [json.loads(line) for line in lines(path.read_text())]
    for one in found:
        assert list(one)[:6] == FIRST, one
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", one["time"]), one
        assert one["host"] == os.uname().nodename
    return [one for one in found if name in (None, one["event"])]


def fields(one, *names):
    return {
        key: re.sub(r"-[0-9A-Za-z]+$", "", v) if key == "mesh" else v for key, v in one.items() if key in (names or set(one) - {*FIRST})
    }


ORDINARY = """
mesh, probe = spawn(2)
probe.say.call("hello").get()
local = this_proc().spawn("local", Probe)
local.pid.call().get()
local.stop().get()
mesh.stop().get()
mesh, probe = spawn(2)
probe.pid.broadcast()
"""


def test_runtime_prints_nothing_on_stderr():
    done = script(ORDINARY)
    assert (sorted(lines(done.stdout)), done.stderr) == (["[0] hello", "[1] hello"], "")


def test_life_of_a_job(tmp_path):
    done = script(ORDINARY, tmp_path)
    assert done.stderr == ""
    found = events(tmp_path)
    assert (found[0]["event"], found[-1]["event"]) == ("client.start", "client.exit")
    assert fields(found[-1]) == {"fault": False}
    # On a busy machine procs may seem unresponsive for a while.
    names = {one["event"] for one in found} - {"proc.unresponsive", "proc.responsive"}
    assert names == {"client.start", "client.exit", "proc.spawn", "proc.start", "proc.end", "actor.start", "actor.stop"}
    by_proc = [one for one in found if one["event"] == "proc.start"]
    assert len(by_proc) == 4
    for one in by_proc:
        assert one["proc"] == f"{one['mesh']}/{one['rank']}"
        (spawn,) = (e for e in events(tmp_path, "proc.spawn") if (e["mesh"], e["rank"]) == (one["mesh"], one["rank"]))
        assert spawn["proc"] == "client"
        (end,) = (e for e in events(tmp_path, "proc.end") if e["child"] == one["pid"])
        assert (end["mesh"], end["rank"], end["kind"]) == (one["mesh"], one["rank"], "stopped")
        mine = [e["event"] for e in found if e["proc"] == one["proc"]]
        assert mine == ["proc.start", "actor.start", "actor.stop"]
    assert {e["detail"] for e in events(tmp_path, "proc.end")} == {"stopped by client", "the client exits"}
    (local,) = (e for e in events(tmp_path, "actor.stop") if e["proc"] == "client")
    assert fields(local) == {"actor": "<root>.<mesh_actors.Probe local>", "mesh": "local", "rank": 0, "kind": "stopped"}
    (path,) = tmp_path.rglob("runtime.jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_process_that_is_stopped_and_goes_on(tmp_path):
    done = script(
        """
        import pathlib
        mesh, probe = spawn(2)
        pid = probe.slice(gpus=1).pid.call_one().get()
        def seen(name):
            return any(f'"{name}"' in path.read_text() for path in pathlib.Path(os.environ["MONARCH_LOG_DIR"]).rglob("runtime.jsonl"))
        os.kill(pid, signal.SIGSTOP)
        eventually("proc.unresponsive is logged", lambda: probe.slice(gpus=0).pid.call_one().get() and seen("proc.unresponsive"))
        os.kill(pid, signal.SIGCONT)
        eventually("proc.responsive is logged", lambda: probe.slice(gpus=0).pid.call_one().get() and seen("proc.responsive"))
        assert probe.slice(gpus=1).pid.call_one().get() == pid
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    one = next(e for e in events(tmp_path, "proc.unresponsive") if e["rank"] == 1)
    assert fields(one) == {"mesh": "work", "rank": 1, "detail": "stopped by a signal"} and one["level"] == "warn"
    assert {"mesh": "work", "rank": 1} in [fields(e) for e in events(tmp_path, "proc.responsive")]


def test_failures(tmp_path):
    script(
        """
        class Keeps(Actor):
            def __init__(self):
                self.mine = this_host().spawn_procs(name="below").spawn("inner", Probe)
            @endpoint
            def lose(self):
                try:
                    self.mine.die.call_one().get()
                except SupervisionError:
                    pass
            @endpoint
            def done(self):
                pass
            def __supervise__(self, failure):
                return True

        mesh, probe = spawn(2)
        keeps = mesh.slice(gpus=0).spawn("keeps", Keeps)
        keeps.lose.call_one().get()
        keeps.done.call_one().get()
        try:
            probe.slice(gpus=1).evaluate.call_one("os._exit(3)").get()
        except SupervisionError:
            pass
        """,
        tmp_path,
    )
    killed, gone = events(tmp_path, "proc.end")[:2]
    assert fields(killed) == {"mesh": "below", "rank": 0, "child": killed["child"], "kind": "signal", "signal": 9}
    assert fields(gone, "mesh", "rank", "kind", "code", "level") == {
        "mesh": "work",
        "rank": 1,
        "kind": "exit_code",
        "code": 3,
        "level": "warn",
    }
    inner, outer = events(tmp_path, "failure.delivered")
    keeper = "<root>.<__main__.Keeps keeps>"
    assert fields(inner, "owner", "mesh", "rank", "kind") == {"owner": keeper, "mesh": "inner", "rank": 0, "kind": "signal"}
    assert inner["detail"] == "the process this actor was running on failed: Killed(sig=9)"
    assert fields(outer, "owner", "mesh", "rank", "kind") == {"owner": "<root>", "mesh": "probe", "rank": 1, "kind": "exit_code"}
    assert [(e["actor"], e["owner"]) for e in events(tmp_path, "failure.handled")] == [
        (inner["actor"], keeper),
        (outer["actor"], "<root>"),
    ]


def test_unhandled_failure(tmp_path):
    done = script("mesh, probe = spawn()\nprobe.fail.broadcast()\nsignal.pause()", tmp_path, check=False)
    assert done.returncode == 1
    (fail,) = events(tmp_path, "actor.fail")
    assert fields(fail, "kind", "detail", "owner", "level") == {
        "kind": "raised",
        "detail": "ValueError: on purpose",
        "owner": "<root>",
        "level": "warn",
    }
    (unhandled,) = events(tmp_path, "failure.unhandled")
    assert (unhandled["level"], unhandled["actor"], unhandled["owner"]) == ("error", fail["actor"], "<root>")
    assert fields(events(tmp_path, "client.exit")[0]) == {"fault": True}
    # The report is on stderr, once, and its first line again after the traceback of the interrupt; no line of the log.
    assert done.stderr.startswith("Unhandled monarch error on the root actor")
    (repeated,) = [line for line in done.stderr.splitlines() if line.startswith("monarch: ")]
    assert "the program was interrupted because of a failure" in repeated and done.stderr.endswith(f"{repeated}\n")


def test_stop_that_takes_too_long(tmp_path):
    done = script(
        """
        read, write = os.pipe()
        configure(stop_actor_timeout="50ms", stop_grace_period="50ms", cleanup_timeout="50ms")
        class Busy(Actor):
            @endpoint
            def block(self):
                os.read(read, 1)
        actor = this_proc().spawn("busy", Busy)
        actor.block.broadcast()
        actor.stop().get()
        os.write(write, b"x")
        """,
        tmp_path,
    )
    (one,) = events(tmp_path, "stop.timeout")
    text = "<root>.<__main__.Busy busy> is still in block after its time to stop was over"
    wanted = {"actor": "<root>.<__main__.Busy busy>", "mesh": "busy", "rank": 0, "endpoint": "block", "detail": text}
    assert (one["level"], fields(one)) == ("warn", wanted)
    assert done.stderr == f"monarch: stop.timeout: {text}\n"


@pytest.mark.parametrize(
    ("hosts", "doing"),
    [
        ("this_host()", "they start, or run the bootstrap wait()"),
        ("this_host().with_python_executable(sys.executable)", r"they start by \S+, or run the bootstrap wait()"),
        ("attach_to_workers(workers=[Channel[str].open()[1].recv()], name='queued', secret=b'0' * 32)", "host queued[0] has not joined"),
    ],
)
def test_slow_spawn_is_logged_once_with_its_work(tmp_path, hosts, doing):
    done = script(
        f"""
        from monarch.actor import Channel, attach_to_workers, context
        from monarch._core.hosts import slow_spawn
        slow_spawn.AFTER = 1.0
        fifo = os.path.join(os.environ["MONARCH_LOG_DIR"], "fifo")
        os.makedirs(os.path.dirname(fifo), exist_ok=True)
        os.mkfifo(fifo)
        read, write = os.pipe()
        console = os.dup(2)
        os.dup2(write, 2)
        def wait():
            open(fifo).close()
        slow = {hosts}.spawn_procs({{"gpus": 3}}, bootstrap=wait, name="slow")
        with os.fdopen(read) as said:
            line = said.readline()
            # A second line of the first mesh would come before that of the second one.
            other = {hosts}.spawn_procs({{"gpus": 3}}, bootstrap=wait, name="other")
            next = said.readline()
        os.dup2(console, 2)
        assert "procs of slow" in line and "procs of other" in next, (line, next)
        sys.stderr.write(line)
        os._exit(0)
        """,
        tmp_path,
    )
    text = rf"monarch: proc.missing: 3 of 3 procs of slow are not ready after 1 s: ranks 0, 1, 2; {doing}\n"
    assert re.fullmatch(text.replace("()", r"\(\)").replace("[0]", r"\[0\]"), done.stderr), done.stderr


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        ("", []),
        ("off", []),
        ("error", []),
        ("info", ["client.start", "proc.spawn", "proc.end", "client.exit"]),
        ("client=info", ["client.start", "client.exit"]),
        ("INFO,client=off", ["proc.spawn", "proc.end"]),
        ("warning, proc=debug", ["proc.spawn", "proc.end"]),
    ],
)
def test_filter_of_what_goes_to_stderr(chosen, seen):
    done = script("mesh, probe = spawn()\nprobe.pid.call().get()\nmesh.stop().get()", env={"MONARCH_LOG": chosen})
    mine = [line for line in lines(done.stderr) if not line.startswith("[0] ")]
    # In the console of the client the lines of other processes have their prefix.
    assert [line.split()[:2] for line in mine] == [["monarch:", name] for name in seen], done.stderr


def test_level_of_the_file(tmp_path):
    script("mesh, probe = spawn()\ntry:\n  probe.die.call().get()\nexcept SupervisionError:\n  pass", tmp_path, "warn")
    assert [e["event"] for e in events(tmp_path)] == ["proc.end", "failure.delivered"]


def test_settings_that_change_while_it_runs(tmp_path):
    script(
        f"""
        mesh, probe = spawn()
        configure(file_log_level="info", log_dir={str(tmp_path)!r})
        other, _ = spawn()
        other.initialized.get()
        configure(file_log_level="off")
        """
    )
    assert [e["event"] for e in events(tmp_path)][:1] == ["proc.spawn"]
    assert {e["event"] for e in events(tmp_path)} <= {"proc.spawn", "proc.start", "actor.start", "actor.stop"}


def test_invalid_log_level_is_named():
    done = script("configure(log_filter='loud,proc=warn')\nmesh, probe = spawn()\nprobe.pid.call().get()")
    (line,) = lines(done.stderr)
    assert line.startswith("monarch: no level of the log: loud: expected trace debug info warn error off")


def test_environment_overrides_the_setting(tmp_path):
    script("spawn()\nconfigure(tail_log_lines=5)", tmp_path, env={"MONARCH_TAIL_LOG_LINES": "7"})
    (one,) = events(tmp_path, "config.warning")
    assert one["detail"] == "configuration key `tail_log_lines` keeps 7: variable MONARCH_TAIL_LOG_LINES is set"


def test_many_processes_write_whole_lines(tmp_path):
    script(
        """
        mesh, probe = spawn(4)
        actors = [mesh.spawn("x" * 300, Probe) for _ in range(50)]
        for actor in actors:
            actor.pid.call().get()
        """,
        tmp_path,
    )
    assert len(events(tmp_path, "actor.start")) == len(events(tmp_path, "actor.stop")) == 4 + 200


def test_file_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "logs"
    blocked.write_text("in the way")
    done = script("mesh, probe = spawn()\nprobe.say.call('hello').get()", blocked)
    mine = [line for line in lines(done.stderr) if not line.startswith("[0] ")]
    assert done.stdout == "[0] hello\n"
    (line,) = mine
    assert str(blocked) in line and "Not a directory (os error 20)" in line


def test_full_disk(tmp_path):
    """Lines that do not fit are left out, and the next line that fits is complete."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mount is refused here: {mounted.stderr.strip()}")
    try:
        done = script(
            f"""
            from monarch._core.process.runtime_log import event
            mesh, probe = spawn()
            probe.pid.call().get()
            for i in range(200):
                event("test.fill", number=i, text="x" * 200)
            filler = {str(disk)!r}
            (path,) = [os.path.join(d, f) for d, _, fs in os.walk(filler) for f in fs]
            os.truncate(path, 100)
            event("test.after", number=1)
            """,
            disk,
        )
        assert len([line for line in lines(done.stderr) if "No space left on device (os error 28)" in line and str(disk) in line]) == 1
        (path,) = disk.rglob("runtime.jsonl")
        after = [line for line in lines(path.read_text()) if "test.after" in line]
        assert [json.loads(line)["number"] for line in after] == [1]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
