"""The output of procs in files: complete, in every state of the disk."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import textwrap
from pathlib import Path

import pytest
from fresh import lines, run

HEAD = """
from mesh_actors import Probe
from monarch.actor import Actor, endpoint, this_host
from monarch.config import configure
import asyncio, os, sys
def spawn(n=1):
    mesh = this_host().spawn_procs({"gpus": n}, name="work")
    return mesh, mesh.spawn("probe", Probe)
"""


def script(body, folder, **options):
    env = {"MONARCH_ENABLE_FILE_CAPTURE": "1", "MONARCH_LOG_DIR": str(folder), **options.pop("env", {})}
    return run(HEAD + textwrap.dedent(body), env=env, **options)


def files(folder):
    """The content of the files, by their names below the job's directory."""
    jobs = list(folder.iterdir())
    assert len(jobs) == 1
    found = {}
    for path in sorted(jobs[0].rglob("*")):
        if path.is_file():
            mesh = path.parent.name.split("-")[0]
            found[f"{mesh}/{path.name}"] = path.read_bytes().decode(errors="surrogateescape")
    return found


def test_bytes_are_kept_as_they_were_printed(tmp_path):
    long = "x" * 10000
    done = script(
        f"""
        mesh, probe = spawn(2)
        asyncio.run(mesh.logging_option(aggregate_window_sec=3600))
        probe.say.call("step 1", "step 2", "{long}", "").get()
        probe.write.call(b"\\xff no text, no end").get()
        probe.complain.call("oh").get()
        """,
        tmp_path,
        errors="surrogateescape",
    )
    text = f"step 1\nstep 2\n{long}\n\n\udcff no text, no end"
    assert files(tmp_path) == {
        f"work/{rank}.{stream}": body for rank in range(2) for stream, body in (("stdout", text), ("stderr", "oh\n"))
    }
    for path in (tmp_path.iterdir()).__next__().rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert done.stderr == "[2 similar log lines] [0] oh\n" or done.stderr == "[2 similar log lines] [1] oh\n"


def test_captured_file_is_complete_after_stop_and_exit(tmp_path):
    script(
        """
        from pathlib import Path
        mesh, probe = spawn()
        probe.say.broadcast(*[f"line {i}" for i in range(5000)])
        mesh.stop().get()
        found = [p for p in Path(os.environ["MONARCH_LOG_DIR"]).rglob("0.stdout")]
        assert len(found[0].read_text().splitlines()) == 5000
        configure(exit_grace="20s")  # it is to start first, which takes its time on a busy machine
        other = this_host().spawn_procs(name="fast").spawn("probe", Probe)
        other.say.broadcast(*[f"line {i}" for i in range(5000)])
        """,
        tmp_path,
    )
    expected = "".join(f"line {i}\n" for i in range(5000))
    assert files(tmp_path) == {"work/0.stdout": expected, "fast/0.stdout": expected}


def test_procs_of_procs_are_kept_too(tmp_path):
    script(
        """
        class Spawns(Actor):
            @endpoint
            def go(self):
                this_host().spawn_procs(name="below").spawn("probe", Probe).say.call_one("deep").get()
        mesh, probe = spawn()
        mesh.spawn("spawns", Spawns).go.call_one().get()
        """,
        tmp_path,
    )
    assert files(tmp_path) == {"below/0.stdout": "deep\n"}


def test_setting_holds_for_what_is_spawned_afterwards(tmp_path):
    run(
        HEAD
        + textwrap.dedent(f"""
        old, probe = spawn()
        probe.say.call("before").get()
        configure(enable_file_capture=True, log_dir={str(tmp_path)!r})
        probe.say.call("still before").get()
        new, probe = spawn()
        probe.say.call("after").get()
        """)
    )
    assert files(tmp_path) == {"work/0.stdout": "after\n"}


def test_default_folder_is_private_and_temporary(tmp_path):
    script("mesh, probe = spawn()\nprobe.say.call('x').get()", "", env={"TMPDIR": str(tmp_path)})
    (job,) = (p for p in tmp_path.iterdir() if p.name.startswith("monarch-"))
    assert stat.S_IMODE(job.stat().st_mode) == 0o700
    assert [p.read_text() for p in job.rglob("0.stdout")] == ["x\n"]


def test_nothing_is_written_unless_asked(tmp_path):
    done = run(HEAD + "mesh, probe = spawn()\nprobe.say.call('x').get()", env={"TMPDIR": str(tmp_path)})
    assert [p for p in tmp_path.iterdir() if p.name.startswith("monarch")] == []
    assert done.stderr == ""


def test_log_dir_that_cannot_be(tmp_path):
    """One warning has the folder and the reason; the job continues, and so do the files when the reason is gone."""
    blocked = tmp_path / "logs"
    blocked.write_text("in the way")
    done = script(
        """
        mesh, probe = spawn(2)
        for i in range(3):
            probe.say.call(f"line {i}").get()
        mesh.stop().get()
        os.unlink(os.environ["MONARCH_LOG_DIR"])
        mesh, probe = spawn()
        probe.say.call("kept").get()
        """,
        blocked,
    )
    assert len(lines(done.stdout)) == 7
    (warning,) = lines(done.stderr)
    assert str(blocked) in warning and "Not a directory (os error 20)" in warning
    assert files(blocked)["work/0.stdout"] == "kept\n"


def test_full_disk(small_disk):
    """The job is not affected and gives one warning. The file continues when there is room, and contains a note of the missing bytes."""
    filler = small_disk / "filler"
    done = script(
        f"""
        from monarch._core.process.current import current_process
        read, write = os.pipe()
        console = os.dup(1)
        os.dup2(write, 1)
        shown = os.fdopen(read)

        def say(word, times):
            probe.say.call(*[word] * times, f"end of {{word}}").get()
            # What is on the console has been handed to the file, and this waits for it.
            while shown.readline() != f"[0] end of {{word}}\\n":  # polls: the line waits
                pass
            current_process().native.flush_output(10.0)

        mesh, probe = spawn()
        say("before", 10)
        with open({str(filler)!r}, "wb", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(512))
            except OSError:
                pass
        say("x" * 99, 100)
        say("y" * 99, 100)
        os.unlink({str(filler)!r})
        say("after", 10)
        os.dup2(console, 1)
        shown.close()
        """,
        small_disk,
    )
    (warning,) = lines(done.stderr)
    assert "No space left on device (os error 28)" in warning and "work-" in warning and str(small_disk) in warning
    text = files(small_disk)["work/0.stdout"]
    before, _, rest = text.partition("[monarch: ")
    number, _, after = rest.partition(" bytes are missing here: No space left on device (os error 28)]\n")
    assert before.startswith("before\n" * 10 + "end of before\n")
    assert after == "after\n" * 10 + "end of after\n"
    # The noted number is that of the missing bytes; a line that was cut has got an end.
    printed = sum(len(f"{word}\n") * times + len(f"end of {word}\n") for word, times in (("before", 10), ("x" * 99, 100), ("y" * 99, 100)))
    assert len(before) + int(number) - printed in (0, 1)


# Prints the directory of the job, before any file is written there.
_EARLY = """
from monarch._core.process.current import current_process
this_host()
folder = current_process().place.log_dir
{make}
configure(file_log_level="info")
mesh, probe = spawn()
probe.say.call("secret").get()
mesh.stop().get()
found = [os.path.join(top, name) for top, _, names in os.walk(os.path.realpath(folder)) for name in names]
print("files:", *found)
"""


@pytest.fixture
def public():
    """A directory in which every user may write, outside of the private one of the tests."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o1777)
        yield Path(path)


def warnings_named(stderr, reason):
    """The files, without their endings, that a warning with this reason names."""
    found = re.findall(r"^(?:\[0\] )?monarch: cannot write \S+/(\S+): .*" + re.escape(reason), stderr, re.M)
    assert len(found) == len(lines(stderr)), stderr
    return {name.split(".")[0] for name in found}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_directory_that_another_user_made_first_gets_nothing(public):
    make = "import subprocess; subprocess.run(['mkdir', '-m', '0777', folder], user=12345, group=12345, extra_groups=[], check=True)"
    done = script(_EARLY.format(make=make), "", env={"TMPDIR": str(public)})
    assert "files:\n" in done.stdout and "[0] secret\n" in done.stdout
    (job,) = public.glob("monarch-*")
    assert warnings_named(done.stderr, f"{job} belongs to user 12345, not to user 0") == {"0", "runtime"}


def test_directory_behind_a_symbolic_link_gets_nothing(tmp_path):
    make = "os.mkdir(folder + '.there', 0o700); os.symlink(folder + '.there', folder)"
    done = script(_EARLY.format(make=make), "", env={"TMPDIR": str(tmp_path)})
    assert "files:\n" in done.stdout and "[0] secret\n" in done.stdout
    assert warnings_named(done.stderr, "is a symbolic link") == {"0", "runtime"}
