"""Steps of CI that run beside others."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ci_steps
from tools.ci_steps import main
from tools.lanes import Step
from tools.project import ROOT


def step(name: str, stage: str, code: str, *, queue: int = 0, optional: bool = False) -> Step:
    return Step(name, stage, (sys.executable, "-c", code), queue=queue, optional=optional)


def test_queues_run_at_once_with_whole_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # A FIFO opens when its other end does: each of the two steps waits for the other one.
    a, b = tmp_path / "a", tmp_path / "b"
    os.mkfifo(a)
    os.mkfifo(b)
    one = f"open({str(a)!r}).close(); open({str(b)!r}, 'w').close(); print('one')"
    two = f"open({str(a)!r}, 'w').close(); print('first'); open({str(b)!r}).close(); print('second')"
    later = f"import pathlib; pathlib.Path({str(tmp_path / 'later')!r}).touch(); print('third')"
    steps = (step("one", "x", one), step("two", "x", two, queue=1), step("three", "x", later, queue=1))
    monkeypatch.setattr(ci_steps, "STEPS", steps)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "first\nsecond\n" in out
    assert "\n=== two: " in out
    assert out.index("second") < out.index("third")
    assert [line.split()[2] for line in out.partition("=== summary")[2].splitlines()[1:]] == ["one", "two", "three", "all"]


def test_three_queues_run_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in "abc"]
    # Each step waits for the two others.
    code = """
import pathlib, time
pathlib.Path({!r}).touch()
while not all(pathlib.Path(name).exists() for name in {!r}):
    time.sleep(0.01)  # sleeps: between two looks
"""
    steps = tuple(step(name, "x", code.format(name, names), queue=number) for number, name in enumerate(names))
    monkeypatch.setattr(ci_steps, "STEPS", steps)
    assert main([]) == 0


def test_failure_beside_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = (step("good", "x", "print('ran')"), step("bad", "x", "raise SystemExit(3)", queue=1))
    monkeypatch.setattr(ci_steps, "STEPS", (*steps, step("more", "x", "print('as well')", queue=1)))
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "FAILED (3)" in out
    assert "\nas well\n" in out


def test_optional_failure_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = (step("may", "x", "raise SystemExit(4)", queue=1, optional=True), step("after", "x", "print('ran')", queue=1))
    monkeypatch.setattr(ci_steps, "STEPS", steps)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "failed, which is allowed (4)" in out
    assert "\nran\n" in out


def test_failure_ends_optional_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    wait = f"import signal; open({str(fifo)!r}, 'w').close(); signal.pause()"
    bad = f"open({str(fifo)!r}).close(); raise SystemExit(5)"
    monkeypatch.setattr(ci_steps, "STEPS", (step("bad", "x", bad), step("may", "x", wait, queue=1, optional=True)))
    assert main([]) == 1
    assert "failed, which is allowed" in capsys.readouterr().out


def test_timed_steps_end_with_the_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = (step("always", "x", "print('ran')"), step("waits", "y", "import signal; signal.pause()", queue=1))
    late = step("late", "y", "import signal; signal.pause()")
    monkeypatch.setattr(ci_steps, "STEPS", (steps[0], steps[1]._replace(timed=True), late._replace(timed=True), late._replace(timed=True)))
    assert main(["--within", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "\nran\n" in out
    assert [line.split()[2] for line in out.splitlines() if line.startswith("no time: ")] == ["waits", "late", "late"]
    assert out.count("not begun") + out.count("ended before its end") >= 3


def test_failed_test_counts_after_the_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A stand-in for pytest with a failed test: it waits at first, and fails again when the test is repeated."""
    code = f"""
import json, pathlib, signal, sys
found = pathlib.Path({str(tmp_path)!r}) / "v" / "cache" / "lastfailed"
found.parent.mkdir(parents=True, exist_ok=True)
found.write_text(json.dumps({{"test_bad": True}}))
sys.exit(1) if "--last-failed" in sys.argv else signal.pause()
"""
    tests = step("tests", "x", code)._replace(cache=str(tmp_path), timed=True)
    monkeypatch.setattr(ci_steps, "STEPS", (tests,))
    assert main(["--within", "0.1"]) == 1
    out = capsys.readouterr().out
    assert "tests: 1 failed tests once more" in out
    assert "no time: tests was ended" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_queues(number: signal.Signals, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Both hold the FIFO open until they end; one of them has a child that does so too.
    hold = f"import signal; f = open({str(fifo)!r}, 'w'); f.write('x'); f.flush(); signal.pause()"
    fork = f"import os, signal; os.fork(); f = open({str(fifo)!r}, 'w'); f.write('x'); f.flush(); signal.pause()"
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tools import ci_steps
from tools.lanes import Step
ci_steps.STEPS = (Step("a", "x", (sys.executable, "-c", {hold!r})), Step("b", "x", (sys.executable, "-c", {fork!r}), queue=1))
sys.exit(ci_steps.main([]))
"""
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        heard = b""
        while len(heard) < 3:
            select.select([reader], [], [])
            heard += os.read(reader, 3)
        os.set_blocking(reader, True)
        run.send_signal(number)
        assert run.wait() != 0
    # The end of the file: no process has it open any more.
    assert os.read(reader, 1) == b""
    os.close(reader)
