"""The output of procs: whole lines, with a prefix, in order, without loss."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fresh import HERE, lines, run

HEAD = """
from mesh_actors import Probe
from monarch.actor import SupervisionError, this_host
import monarch.actor
from monarch.config import configure, configured
import os, sys
def spawn(n=1, **options):
    mesh = this_host().spawn_procs({"gpus": n}, **options)
    return mesh, mesh.spawn("probe", Probe)
"""


def script(body, **options):
    import textwrap

    return run(HEAD + textwrap.dedent(body), **options)


def test_lines_have_the_rank_and_are_in_order():
    done = script("""
        mesh, probe = spawn(2)
        probe.say.call(*[f"line {i}" for i in range(500)]).get()
    """)
    for rank in range(2):
        mine = [line for line in lines(done.stdout) if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] line {i}" for i in range(500)]
    assert len(lines(done.stdout)) == 1000
    assert done.stderr == ""


def test_output_without_prefix_is_unchanged():
    done = script("""
        configure(prefix_with_rank=False)
        mesh, probe = spawn()
        probe.say.call("bare").get()
    """)
    assert done.stdout == "bare\n"


def test_prefix_from_the_environment():
    done = script("mesh, probe = spawn()\nprobe.say.call('bare').get()", env={"HYPERACTOR_PREFIX_WITH_RANK": "0"})
    assert done.stdout == "bare\n"


def test_stderr_goes_to_stderr():
    done = script("""
        mesh, probe = spawn()
        probe.complain.call("oh").get()
        probe.say.call("ah").get()
    """)
    assert (done.stdout, done.stderr) == ("[0] ah\n", "[0] oh\n")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("x" * 4096 + "\n", "[0] " + "x" * 4096 + "\n"),
        ("x" * 4097 + "\n", "[0] " + "x" * 4096 + "[TRUNCATED]\n"),
        ("x" * 300000 + "\nafter\n", "[0] " + "x" * 4096 + "[TRUNCATED]\n[0] after\n"),
        ("\n\n", "[0] \n[0] \n"),
        ("no newline", "[0] no newline\n"),
        ("a\x00b\x1b[0m\n", "[0] a\x00b\x1b[0m\n"),
        ("x" * 4095 + "é" * 2 + "\n", "[0] " + "x" * 4095 + "[TRUNCATED]\n"),
    ],
)
def test_long_empty_and_odd_lines(data, expected):
    done = script("mesh, probe = spawn()\nprobe.write.call(sys.stdin.buffer.read()).get()", input=data)
    assert done.stdout == expected


def test_bytes_that_are_no_text():
    done = script(
        """
        mesh, probe = spawn()
        probe.write.call(b"\\xff\\xfe\\n").get()
        mesh.stop().get()
        os.write(1, b"end\\n")
    """,
        errors="surrogateescape",
    )
    assert done.stdout.encode("utf-8", "surrogateescape") == b"[0] \xff\xfe\nend\n"


def test_line_written_in_pieces_is_one_line():
    done = script("""
        mesh, probe = spawn(2)
        for piece in (b"one ", b"line ", b"of three\\n"):
            probe.write.call(piece).get()
    """)
    assert sorted(lines(done.stdout)) == ["[0] one line of three", "[1] one line of three"]


def test_large_output_of_many_procs_is_complete():
    done = script("""
        mesh, probe = spawn(4)
        probe.evaluate.call("[print(f'{i:06d}' + 'x' * 150) for i in range(5000)] and None").get()
    """)
    found = lines(done.stdout)
    assert len(found) == 20000
    for rank in range(4):
        mine = [line for line in found if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] {i:06d}" + "x" * 150 for i in range(5000)]


def test_output_of_children_of_a_proc():
    done = script("""
        mesh, probe = spawn()
        probe.evaluate.call("os.system('echo from a child')").get()
    """)
    assert done.stdout == "[0] from a child\n"


def test_output_before_a_kill_is_shown_and_reported():
    done = script("""
        monarch.actor.unhandled_fault_hook = lambda failure: None
        mesh, probe = spawn()
        try:
            probe.say_and_die.call("last words").get()
        except SupervisionError as e:
            print("report", "last output:\\\\n    last words" in str(e).replace("\\n", "\\\\n"))
    """)
    assert sorted(lines(done.stdout)) == ["[0] last words", "report True"]


def test_tail_has_so_many_lines_of_both_streams():
    done = script("""
        monarch.actor.unhandled_fault_hook = lambda failure: None
        configure(tail_log_lines=3)
        mesh, probe = spawn()
        probe.say.call(*[f"line {i}" for i in range(10)]).get()
        try:
            probe.die.call().get()
        except SupervisionError as e:
            text = str(e)
            print([i for i in range(10) if f"line {i}\\n" in text + "\\n"])
    """)
    assert "[7, 8, 9]" in lines(done.stdout)


def test_output_precedes_the_end_of_stop():
    done = script("""
        for i in range(20):
            mesh, probe = spawn()
            probe.say.broadcast(f"round {i}")
            mesh.stop().get()
            os.write(1, f"stopped {i}\\n".encode())
    """)
    expected = [text for i in range(20) for text in (f"[0] round {i}", f"stopped {i}")]
    assert lines(done.stdout) == expected


def test_output_is_complete_after_exit_without_stop():
    # The procs have not started when the script ends: on a busy machine their start takes longer than the normal grace of an exit.
    done = script("""
        configure(exit_grace="20s")
        mesh, probe = spawn(2)
        probe.say.broadcast(*[f"line {i}" for i in range(2000)])
    """)
    assert len(lines(done.stdout)) == 4000


def test_output_of_atexit_handlers_is_shown():
    done = script("""
        mesh, probe = spawn()
        probe.evaluate.call("__import__('atexit').register(print, 'leaving')").get()
    """)
    assert done.stdout == "[0] leaving\n"


def test_unflushed_output_of_user_streams_is_not_lost():
    done = script("""
        mesh, probe = spawn()
        probe.evaluate.call("sys.stdout.write('no newline, not flushed') and None").get()
        mesh.stop().get()
    """)
    assert done.stdout == "[0] no newline, not flushed\n"


def test_closed_console_disturbs_no_actor():
    read, write = os.pipe()
    os.close(read)
    try:
        done = script(
            """
            mesh, probe = spawn()
            probe.say.call(*["x" * 1000] * 200).get()
            print(len(probe.pid.call().get()), file=sys.stderr)
            """,
            stdout=write,
        )
    finally:
        os.close(write)
    assert done.stderr == "1\n"


def test_console_that_is_not_there_at_all():
    done = run(
        HEAD
        + """
os.close(1)
mesh, probe = spawn()
probe.say.call("to nobody").get()
print(len(probe.pid.call().get()), file=sys.stderr)
""",
        check=False,
    )
    assert done.stderr.startswith("1\n")
    assert done.stdout == ""


def test_proc_that_closes_its_streams_lives_on():
    done = script("""
        mesh, probe = spawn()
        probe.evaluate.call("(os.close(1), os.close(2), None)[2]").get()
        print(len(probe.pid.call().get()))
    """)
    assert done.stdout == "1\n"


HOW = ("never opened", "nobody reads")
ENDS = ("", "sys.exit(5)", "raise ValueError", "import time\nprobe.fail.broadcast()\ntime.sleep(25)  # sleeps: until the failure ends it")
CLOSED = [(which, how, "") for which in ("1", "2") for how in HOW] + [("1 2", how, body) for how in HOW for body in ENDS]


@pytest.mark.parametrize(("which", "how", "body"), CLOSED)
def test_closed_streams_of_the_client_change_nothing_else(tmp_path, which, how, body):
    """The job runs to its end, with its own exit code; the output to other streams is complete."""
    source = tmp_path / "script.py"
    report = tmp_path / "report"
    source.write_text(
        f"{HEAD}\nmesh, probe = spawn(2)\nprobe.say.call(*['x' * 1000] * 100).get()\nprobe.complain.call('oh').get()\n"
        f"with open({str(report)!r}, 'w') as f:\n    f.write(str(len(probe.pid.call().get())))\n{body}\n"
    )
    read, write = os.pipe()
    os.close(read)
    nobody = {name: write for fd, name in (("1", "stdout"), ("2", "stderr")) if fd in which and how == "nobody reads"}
    closed = [f"{fd}>&-" for fd in which.split() if how == "never opened"]
    command = " ".join(["exec", sys.executable, str(source), *closed])
    code = 5 if "exit" in body else int(bool(body))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **nobody}
    try:
        if "raise" in body:
            # The code is 120 if the interpreter buffers output that it cannot write.
            plain = ["sh", "-c", " ".join(["exec", sys.executable, "-c", f"'{body}'", *closed])]
            code = subprocess.run(plain, check=False, timeout=25, **streams).returncode
        done = subprocess.run(["sh", "-c", command], env=env, text=True, check=False, timeout=25, **streams)
    finally:
        os.close(write)
    assert (done.returncode, report.read_text()) == (code, "2"), done.stderr
    if "1" not in which:
        assert len(lines(done.stdout)) == 200
    if "2" not in which:
        assert sorted(line for line in lines(done.stderr) if line.startswith("[")) == ["[0] oh", "[1] oh"]


def test_file_with_a_closed_streams_number_stays_open(tmp_path):
    source = tmp_path / "script.py"
    mine = tmp_path / "mine"
    source.write_text(
        f"f = open({str(mine)!r}, 'w')\nassert f.fileno() == 1\n{HEAD}\nmesh, probe = spawn()\nprobe.say.call('to nobody').get()\n"
        "mesh.stop().get()\nf.write('my own')\nf.close()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    subprocess.run(["sh", "-c", f"exec {sys.executable} {source} >&-"], env=env, check=True, timeout=25)
    assert mine.read_text() == "my own"


def test_closed_pipe_on_stdout_drops_the_rest():
    """`script | head -1`: the rest is dropped, and the script ends by itself with its own code."""
    done = script(
        """
        read, write = os.pipe()
        os.dup2(write, 1)
        os.close(write)
        mesh, probe = spawn()
        head = os.fdopen(read)
        probe.say.call("first").get()
        print(head.readline().strip(), file=sys.stderr)
        head.close()
        for i in range(20):
            probe.say.call(*["x" * 1000] * 100).get()
        print(len(probe.pid.call().get()), file=sys.stderr)
        sys.exit(9)
        """,
        check=False,
    )
    assert (done.returncode, done.stderr) == (9, "[0] first\n1\n")
