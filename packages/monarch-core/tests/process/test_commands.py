"""Commands in child processes, by their public names: output, exit codes, signals, terminals, and leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fresh_script import run as run_script
from fresh_script import wait_for_end

from monarch.extension.command import HUNG_UP, CannotStart, CommandLine, Finished, GuardedProcess, TerminalProcess, exit_code, run_command

T = TypeVar("T")


def sh(script: str, *words: str) -> CommandLine:
    return CommandLine(("sh", "-c", script, "sh", *words), {**os.environ, "COLOR": "green"})


def run(body: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(body)


def test_command_gives_its_output_and_its_code() -> None:
    found = run(run_command(sh("echo $COLOR $1; echo oops >&2; exit 3", "bird")))
    assert found == Finished(3, b"green bird\n", b"oops\n", 0)


def test_script_that_comes_along_is_run_and_removed(tmp_path: Path) -> None:
    line = CommandLine(("sh", None, "word"), dict(os.environ), str(tmp_path), ("hello.sh", b"echo $0 $1; pwd"))
    first, second = run(run_command(line)).stdout.decode().splitlines()
    path, word = first.split()
    assert (word, second) == ("word", str(tmp_path)) and path.endswith("/hello.sh") and not os.path.exists(path)


def test_large_output_is_cut_and_counted() -> None:
    found = run(run_command(sh("head -c 3000000 /dev/zero; head -c 10 /dev/zero >&2"), limit=1000))
    assert (found.code, len(found.stdout), len(found.stderr), found.left_out) == (0, 1000, 10, 2999000)


def test_signal_counts_as_a_shell_counts_it() -> None:
    assert run(run_command(sh("kill -USR1 $$"))).code == 128 + signal.SIGUSR1
    assert exit_code(signal.SIGKILL) == 137


@pytest.mark.parametrize(
    ("words", "workdir", "word"), [(("no-such-program",), None, "no-such-program"), (("sh",), "/no/folder", "/no/folder")]
)
def test_command_that_cannot_start(words: tuple[str, ...], workdir: str | None, word: str) -> None:
    with pytest.raises(CannotStart) as found:
        run(run_command(CommandLine(words, dict(os.environ), workdir)))
    assert (found.value.errno, found.value.word) == (2, word)


def test_command_that_hangs_ends_after_its_time() -> None:
    script = "trap : INT TERM; sleep 1000 & echo $!; while :; do sleep 1000; done"
    found = run(run_command(sh(script), timeout=0.5, grace=0.1))
    assert found.code == 124
    # All descendants end, too.
    assert wait_for_end(int(found.stdout))


def test_caller_without_streams_gets_the_output() -> None:
    run_script("""
    import asyncio
    from monarch.extension.command import CommandLine, TerminalProcess, run_command

    async def main():
        # What the loop has opened would have the numbers of the streams otherwise.
        for fd in range(3):
            os.close(fd)
        done = await run_command(CommandLine(["sh", "-c", "echo out; echo err >&2; exit 3"], os.environ))
        assert done == (3, b"out\\n", b"err\\n", 0), done
        terminal = TerminalProcess((24, 80))
        await terminal.start(CommandLine(["echo", "shown"], os.environ))
        shown = await terminal.read()
        assert shown == (b"shown\\r\\n", None), shown
        await terminal.close()

    asyncio.run(main())
    """).assert_clean()


def test_cancelled_command_ends(tmp_path: Path) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)

    async def main() -> int:
        task = asyncio.create_task(run_command(sh("echo $$ > $1; exec sleep 1000", str(pipe)), grace=0.1))
        pid = int(await asyncio.to_thread(pipe.read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    assert wait_for_end(run(main()))


def test_command_ends_with_its_guard() -> None:
    async def main() -> tuple[int, int]:
        process = GuardedProcess()
        await process.start(sh("exec sleep 1000"), (0, 1, 2))
        parent = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        status = await process.ended
        await process.wait_closed()
        return process.pid, status

    pid, status = run(main())
    assert exit_code(status) == 137 and wait_for_end(pid)


def test_terminal_shows_input_and_reports_the_exit_code() -> None:
    codes: list[int] = []

    async def main() -> tuple[bytes, int | None]:
        terminal = TerminalProcess((24, 80), codes.append)
        await terminal.start(sh("read word; stty size; echo got $word; exit 5"))
        await terminal.write(b"bird\n")
        shown, code = b"", None
        while code is None:
            data, code = await terminal.read()
            shown += data
        await terminal.close()
        return shown, code

    shown, code = run(main())
    assert b"24 80" in shown and b"got bird" in shown and code == 5 and codes == [5]


def test_terminal_with_unread_input_is_hung_up() -> None:
    async def main() -> int:
        terminal = TerminalProcess((24, 80))
        await terminal.start(CommandLine(("sh", "-i"), dict(os.environ)))
        await terminal.write(b"sleep 1000\n")
        await terminal.end_input()
        while True:
            _, code = await terminal.read()
            if code is not None:
                await terminal.close()
                return code

    assert run(main()) == HUNG_UP


def test_terminal_that_was_not_started() -> None:
    async def main() -> None:
        terminal = TerminalProcess((24, 80))
        with pytest.raises(RuntimeError, match="has not been started"):
            await terminal.read()
        with pytest.raises(CannotStart):
            await terminal.start(CommandLine(("no-such-program",), {}))
        await terminal.close()

    run(main())
