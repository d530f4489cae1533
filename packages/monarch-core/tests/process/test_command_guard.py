"""A command that kills or stops its guard, the watchdog of the guard, or both: the caller continues, and no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from fresh_script import Script, wait_for_end

from monarch.extension.command import TIMED_OUT, CommandLine, GuardedProcess, TerminalProcess, exit_code, run_command

# The guard is the parent of the command, the watchdog is the parent of the guard.
WATCHDOG = 'w=$(cut -d " " -f 4 /proc/$PPID/stat); '
TARGETS = {"guard": "$PPID", "watchdog": "$w", "both": "$w $PPID", "guard first": "$PPID $w"}
# A descendant in a session of its own, with an environment of its own.
FAMILY = "setsid env -i sleep 1000 & setsid sleep 1000 & "
targets = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def line(script: str) -> CommandLine:
    return CommandLine(("sh", "-c", script), dict(os.environ))


@targets
def test_stopped_guard_reports_the_end(target: str) -> None:
    done = asyncio.run(run_command(line(f"{WATCHDOG}kill -STOP {target}; echo on; exit 3")))
    assert (done.code, done.stdout) == (3, b"on\n")


@targets
def test_guard_stopped_again_and_again_ends_its_command(target: str) -> None:
    script = f"{WATCHDOG}trap '' INT TERM; {FAMILY} echo $! $$; while :; do kill -STOP {target}; done"
    done = asyncio.run(run_command(line(script), timeout=0.2, grace=0.1))
    assert done.code == TIMED_OUT
    assert all(wait_for_end(int(pid)) for pid in done.stdout.split())


@targets
def test_stopped_guard_of_a_killed_caller_leaves_nothing(target: str) -> None:
    words = f"{WATCHDOG}{FAMILY} kill -STOP {target}; echo stopped; while :; do sleep 1000; done"
    script = Script(f"""
    import asyncio
    from monarch.extension.command import CommandLine, GuardedProcess

    async def main():
        process = GuardedProcess()
        await process.start(CommandLine(("sh", "-c", {words!r}), os.environ), (0, os.dup(1), 2))
        await process.ended

    asyncio.run(main())
    """)
    try:
        script.until("stopped")
        script.send(signal.SIGKILL)
    except BaseException:
        script.close()
        raise
    assert script.end().left == []


@pytest.mark.parametrize("killed", [("guard",), ("watchdog",), ("guard", "watchdog"), ("watchdog", "guard")], ids="-".join)
def test_killed_guard_leaves_nothing(killed: tuple[str, ...], tmp_path: Path) -> None:
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    # A process with neither a parent nor its environment is found as long as the guard or the watchdog lives.
    family = FAMILY if len(killed) == 1 else "setsid sleep 1000 & "
    text = f"{family} sleep 1000 & echo $$ $(cat /proc/$$/task/$$/children) > $FIFO; while :; do sleep 1000; done"

    async def main() -> tuple[int, list[int], Path]:
        process = GuardedProcess()
        await process.start(CommandLine(("sh", None), {**os.environ, "FIFO": str(fifo)}, None, ("family.sh", text.encode())), (0, 1, 2))
        pids = [int(pid) for pid in (await asyncio.to_thread(fifo.read_text)).split()]
        place = Path(Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[1].decode())
        assert place.is_file()
        guards = {"guard": parent(process.pid), "watchdog": parent(parent(process.pid))}
        for name in killed:
            os.kill(guards[name], signal.SIGKILL)
        status = await process.ended
        process.close()
        await process.wait_closed()
        return status, pids, place

    status, pids, place = asyncio.run(main())
    assert exit_code(status) == 137
    assert len(pids) >= 3 and all(wait_for_end(pid) for pid in pids)
    assert not place.parent.exists()


def test_killed_guard_of_a_killed_caller_leaves_nothing() -> None:
    words = f"{FAMILY} echo started; while :; do sleep 1000; done"
    script = Script(f"""
    import asyncio
    from monarch.extension.command import CommandLine, GuardedProcess

    async def main():
        process = GuardedProcess()
        text = {words!r}
        await process.start(CommandLine(("sh", None), os.environ, None, ("family.sh", text.encode())), (0, os.dup(1), 2))
        say(f"pid {{process.pid}}")
        await process.ended

    asyncio.run(main())
    """)
    try:
        pid = int(script.until("pid").split()[1])
        # The caller notices no difference.
        script.send(signal.SIGSTOP)
        os.kill(parent(pid), signal.SIGKILL)
        script.send(signal.SIGKILL)
    except BaseException:
        script.close()
        raise
    assert script.end().left == []


def test_nested_command_has_the_marks_of_both() -> None:
    async def main() -> list[str]:
        outer = await run_command(line("echo $MONARCH_COMMAND_MARK"))
        env = {**os.environ, "MONARCH_COMMAND_MARK": outer.stdout.decode().strip()}
        inner = await run_command(CommandLine(("sh", "-c", "echo $MONARCH_COMMAND_MARK"), env))
        return [done.stdout.decode().strip() for done in (outer, inner)]

    outer, inner = asyncio.run(main())
    assert inner.startswith(outer + ",") and len(inner) > len(outer) + 1


BAD_LINES = [
    ((), {}, "expected a CommandLine, not tuple"),
    (CommandLine([], {}), {}, r"argv=\[\]: expected at least one word"),
    (CommandLine([None], {}), {}, r"argv\[0\]=None: None is the place of the script"),
    (CommandLine("ls", {}), {}, r"argv='ls': expected a sequence of words, .* not str"),
    (CommandLine(["ls", 3], {}), {}, r"argv\[1\]: expected a text, not int"),
    (CommandLine(["ls", "a\0b"], {}), {}, r"argv\[1\]='a\\x00b': it has a null character"),
    (CommandLine(["ls", "\ud800"], {}), {}, r"argv\[1\]='\\ud800': it has a surrogate"),
    (CommandLine(["ls"], None), {}, "env=None: expected a mapping"),
    (CommandLine(["ls"], {"A=B": "x"}), {}, r"env\['A=B'\]: .* a = in its name"),
    (CommandLine(["ls"], {"": "x"}), {}, r"env\[''\]: .* an empty name"),
    (CommandLine(["ls"], {3: "x"}), {}, r"the name env\[3\]: expected a text, not int"),
    (CommandLine(["ls"], {"A": 1}), {}, r"env\['A'\]: expected a text, not int"),
    (CommandLine(["ls"], {"A": "\0"}), {}, r"env\['A'\]='\\x00': it has a null character"),
    (CommandLine(["ls"], {"A": "\ud800"}), {}, r"env\['A'\]='\\ud800': it has a surrogate"),
    (CommandLine(["ls"], {}, Path("/")), {}, "workdir: expected a text, not PosixPath"),
    (CommandLine(["ls"], {}, "a\0b"), {}, "workdir='a.x00b': it has a null character"),
    (CommandLine(["ls"], {}, ""), {}, "workdir='': expected None or a text"),
    (CommandLine([None], {}, None, ("a/b", b"")), {}, "script: 'a/b' is no name of a file"),
    (CommandLine([None], {}, None, ("a", "text")), {}, "script=.*: expected None or a name and bytes"),
    (CommandLine(["ls"], {}, program_name=b"x"), {}, "program_name: expected a text, not bytes"),
    (CommandLine(["ls"], {}), {"timeout": "1"}, "timeout='1': expected a number of seconds, or None, not str"),
    (CommandLine(["ls"], {}), {"timeout": float("nan")}, "timeout=nan: expected a finite number"),
    (CommandLine(["ls"], {}), {"grace": -1}, "grace=-1: expected a finite number of seconds, 0 or more"),
    (CommandLine(["ls"], {}), {"grace": None}, "grace=None: expected a number of seconds, not NoneType"),
    (CommandLine(["ls"], {}), {"limit": -1}, "limit=-1: expected 0 or more"),
    (CommandLine(["ls"], {}), {"limit": 1.5}, "limit=1.5: expected an int, not float"),
]


@pytest.mark.parametrize(("bad", "options", "text"), BAD_LINES)
def test_bad_argument_is_named_before_anything_starts(
    bad: CommandLine, options: dict[str, float], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", started)
    with pytest.raises((TypeError, ValueError), match=text):
        asyncio.run(run_command(bad, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, 999, "9"])
def test_bad_signal_is_refused(number: int) -> None:
    async def main() -> None:
        GuardedProcess().signal(number)

    with pytest.raises((TypeError, ValueError), match=f"number={number!r}"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("window", "text"), [("24x80", "window='24x80'"), ((24, "80"), "window.1.='80'"), ((24, 70_000), "window.1.=70000")]
)
def test_bad_window_is_refused(window: tuple[int, int], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        TerminalProcess(window)


@pytest.mark.parametrize("fds", [(0, 1), (0, 1, -1), (0, 1, None)])
def test_bad_descriptors_are_refused(fds: tuple[int, int, int]) -> None:
    async def main() -> None:
        await GuardedProcess().start(line("true"), fds)

    with pytest.raises((TypeError, ValueError), match="fds"):
        asyncio.run(main())
