"""Commands on a closed loop, commands started twice, commands that end just before their time, and commands without room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fresh_script import run as run_script
from fresh_script import wait_for_end

from monarch.extension.command import CommandLine, GuardedProcess, OutputBuffer, OutputPipe, TerminalProcess, run_command


def line(*words: str) -> CommandLine:
    return CommandLine(words, dict(os.environ))


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


CLOSED_LOOP = """
import asyncio, gc, logging
from monarch.extension.command import CommandLine, GuardedProcess, TerminalProcess, run_command

logged = []
class Kept(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage().splitlines()[0])
logging.getLogger("asyncio").addHandler(Kept())
logging.getLogger("asyncio").propagate = False

def state():
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        return len(os.listdir("/proc/self/fd")), f.read()

def guards():
    return [thread for thread in threading.enumerate() if thread.name == "monarch-watchdog"]

fifo = os.path.join(os.environ["TMPDIR"], "fifo")
os.mkfifo(fifo)
import atexit
atexit.register(os.unlink, fifo)
line = CommandLine(["sh", "-c", f"echo runs > {fifo}; exec sleep 1000"], os.environ)

async def turn():
    await asyncio.sleep(0)

async def until_it_runs():
    def read():
        with open(fifo) as f:
            assert f.read() == "runs\\n"
    await asyncio.to_thread(read)
    # The loop sees the start.
    await asyncio.sleep(0)
"""


def test_closed_loop_leaves_neither_descriptors_nor_children() -> None:
    run_script(
        CLOSED_LOOP
        + """
async def terminal():
    shown = TerminalProcess((24, 80))
    await shown.start(line)
    await shown.read()

async def dropped():
    process = GuardedProcess()
    await process.start(line, (0, 1, 2))
    await process.ended

for body in (lambda: run_command(line), lambda: run_command(line, timeout=1000), terminal, dropped):
    before = state()
    for point in (turn, until_it_runs):
        loop = asyncio.new_event_loop()
        task = loop.create_task(body())
        loop.run_until_complete(point())
        loop.close()
        del task, loop
        gc.collect()
        for thread in guards():
            thread.join()
        assert state() == before, (state(), before)
assert set(logged) == {"Task was destroyed but it is pending!"}, logged
"""
    ).assert_clean()


def test_command_is_let_go_of_after_its_loop() -> None:
    run_script(
        CLOSED_LOOP
        + """
before = state()
loop = asyncio.new_event_loop()
async def start():
    process = GuardedProcess()
    await process.start(line, (0, 1, 2))
    return process
process = loop.run_until_complete(start())
loop.close()
process.close()
# On another loop.
asyncio.run(process.wait_closed())
assert state() == before, (state(), before)
assert not logged
"""
    ).assert_clean()


def test_code_of_a_command_that_ended_counts() -> None:
    # The child holds the streams, so the command's end is reported after the time.
    done = asyncio.run(run_command(line("sh", "-c", "sleep 1000 & echo $!; exit 3"), timeout=0.5))
    assert done.code == 3
    assert wait_for_end(int(done.stdout))


def test_command_that_handles_a_signal_keeps_its_code() -> None:
    async def main() -> bool:
        process = GuardedProcess()
        await process.start(line("sh", "-c", "trap 'exit 4' INT; kill -STOP $$; while :; do sleep 1000; done"), (0, 1, 2))
        process.signal(2)
        process.signal(18)
        await process.ended
        process.close()
        await process.wait_closed()
        return process.was_signalled

    assert asyncio.run(main())


def test_too_few_descriptors_leave_none_behind() -> None:
    run_script("""
    import asyncio, resource
    from monarch.extension.command import CannotStart, CommandLine, TerminalProcess, run_command

    line = CommandLine(["echo", "hi"], os.environ)
    def opened():
        return set(os.listdir("/proc/self/fd"))

    async def terminal():
        shown = TerminalProcess((24, 80))
        try:
            await shown.start(line)
        finally:
            await shown.close()

    async def main():
        assert (await run_command(line)).stdout == b"hi\\n"
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for body in (lambda: run_command(line), terminal):
            refused = 0
            for free in range(15):
                before = opened()
                resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
                fill = []
                while True:
                    try:
                        fill.append(os.open("/dev/null", os.O_RDONLY))
                    except OSError:
                        break
                for fd in fill[-free:] if free else []:
                    os.close(fd)
                    fill.remove(fd)
                try:
                    await body()
                except CannotStart as e:
                    assert "Too many open files" in str(e), e
                    refused += 1
                for fd in fill:
                    os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                assert opened() == before, (free, opened() - before)
            assert 3 < refused < 15, refused

    asyncio.run(main())
    """).assert_clean()


def test_script_that_does_not_fit_is_named() -> None:
    # A small version of a full disk: the largest file is smaller than the script.
    run_script("""
    import asyncio, errno, resource
    from monarch.extension.command import CannotStart, CommandLine, run_command

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    line = CommandLine(["sh", None], os.environ, script=("setup.sh", b"#" * 2000))
    try:
        asyncio.run(run_command(line))
    except CannotStart as e:
        assert e.errno == errno.EFBIG and e.word.endswith("/setup.sh") and not os.path.exists(e.word), e
        assert str(e) == f"cannot start {e.word!r}: File too large", e
        say("refused")
    """).assert_clean()


def refused(body: Coroutine[Any, Any, object], text: str) -> Coroutine[Any, Any, None]:
    async def step() -> None:
        with pytest.raises(RuntimeError, match=text):
            await body

    return step()


def make_guarded() -> tuple[GuardedProcess, Callable[[], Coroutine[Any, Any, None]], Callable[[], Coroutine[Any, Any, None]]]:
    process = GuardedProcess()

    async def close() -> None:
        process.close()
        await process.wait_closed()

    return process, lambda: process.start(line("sleep", "1000"), (0, 1, 2)), close


def make_terminal() -> tuple[TerminalProcess, Callable[[], Coroutine[Any, Any, None]], Callable[[], Coroutine[Any, Any, None]]]:
    terminal = TerminalProcess((24, 80))
    return terminal, lambda: terminal.start(line("sleep", "1000")), terminal.close


@pytest.mark.parametrize("make", [make_guarded, make_terminal])
def test_second_start_is_refused(make: Callable[[], tuple[Any, Any, Any]]) -> None:
    async def main() -> int:
        process, start, close = make()
        before = descriptors()
        await start()
        opened = descriptors()
        await refused(start(), "start of 'sleep': this .* has been started before")
        assert descriptors() == opened
        pid: int = process.pid
        await close()
        await refused(start(), "has been started before")
        assert descriptors() == before
        return pid

    assert wait_for_end(asyncio.run(main()))


@pytest.mark.parametrize("make", [make_guarded, make_terminal])
def test_start_after_close_is_refused(make: Callable[[], tuple[Any, Any, Any]]) -> None:
    async def main() -> None:
        _, start, close = make()
        before = descriptors()
        await close()
        await refused(start(), "start of 'sleep': this .* is closed")
        await close()
        assert descriptors() == before

    asyncio.run(main())


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_close_ends_a_start_that_waits(size: int) -> None:
    async def main() -> None:
        process = GuardedProcess()
        # One specification that the guard has not read yet, and one that does not fit into its socket.
        words = line("sleep", "1000")._replace(env={**os.environ, **{f"X{n}": "x" * 100_000 for n in range(size // 100_000)}})
        start = asyncio.ensure_future(process.start(words, (0, 1, 2)))
        await asyncio.sleep(0)
        process.close()
        with pytest.raises(RuntimeError, match="closed while it was being started"):
            await start
        await process.wait_closed()

    asyncio.run(main())


def test_cancelled_start_leaves_nothing() -> None:
    async def main() -> None:
        before = descriptors()
        for make in (make_guarded, make_terminal):
            _, start, close = make()
            task = asyncio.ensure_future(start())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await close()
        assert descriptors() == before

    asyncio.run(main())


def test_closed_terminal_takes_and_gives_nothing() -> None:
    async def main() -> None:
        terminal, start, close = make_terminal()
        await refused(terminal.write(b"x"), "write: the command in the terminal has not been started")
        await start()
        waiting = asyncio.ensure_future(terminal.read())
        # The data exceeds the terminal's buffer: `sleep` reads nothing.
        filling = asyncio.ensure_future(terminal.write(b"x" * (1 << 20)))
        await asyncio.sleep(0)
        await close()
        await refused(_result(waiting), "read: the terminal is closed")
        await refused(_result(filling), "write: the terminal is closed")
        pipes = [os.pipe() for _ in range(8)]
        try:
            for name, body in (("read", terminal.read()), ("write", terminal.write(b"x")), ("end_input", terminal.end_input())):
                await refused(body, f"{name}: the terminal is closed")
            with pytest.raises(RuntimeError, match="resize: the terminal is closed"):
                terminal.resize((3, 3))
        finally:
            for pair in pipes:
                for fd in pair:
                    os.close(fd)

    asyncio.run(main())


async def _result(of: asyncio.Future[Any]) -> object:
    return await of


def test_window_that_is_set_before_the_start() -> None:
    async def main() -> bytes:
        terminal = TerminalProcess((24, 80))
        terminal.resize((30, 90))
        await terminal.start(line("stty", "size"))
        shown, _ = await terminal.read()
        await terminal.close()
        return shown

    assert asyncio.run(main()) == b"30 90\r\n"


def test_pipe_is_closed_with_its_owner() -> None:
    async def main() -> None:
        before = descriptors()
        pipe = OutputPipe(asyncio.get_running_loop(), 1, False, OutputBuffer(10), lambda: None)
        os.close(pipe.command_end)
        del pipe
        assert descriptors() == before

    asyncio.run(main())
