"""Stacks of a process that keeps the GIL: frames that cannot be walked harm nothing."""

from __future__ import annotations

from fresh_script import run


def test_frames_that_cannot_be_walked_harm_nothing() -> None:
    done = run(
        """
        import ctypes
        import time
        from monarch._core.observe.inspection import STACKS
        from monarch._core.process.current import current_process

        class Broken(Actor):
            @endpoint
            def hold(self, seconds):
                # The name of the file in the code object of this frame is no object while the thread keeps the GIL.
                code = sys._getframe().f_code
                name = id(code.co_filename)
                words = (ctypes.c_size_t * 30).from_address(id(code))
                at = list(words).index(name)
                sleep = ctypes.PyDLL(None).usleep
                # No other thread gets the GIL from now on: it would read the name, too.
                sys.setswitchinterval(1000)
                time.sleep(0.05)  # sleeps: threads that wait for the GIL already get it once
                words[at] = 1
                sleep(int(seconds * 1e6))
                words[at] = name
                sys.setswitchinterval(0.005)
                return os.getpid()

            @endpoint
            def children(self):
                try:
                    return os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return None

        broken = this_host().spawn_procs().spawn("broken", Broken)
        assert broken.children.call_one().get() is None
        holding = broken.hold.call_one(3.0)
        native = current_process().native
        looks = 0
        while not holding._done():
            cells = [native.inspect(STACKS) for _ in range(5)]
            for cell in cells:
                cell.wait(0, 10.0)
            found = [cell.results()[0] for cell in cells]
            looks += any(result is not None and b"the GIL is held" in result.raw() for result in found)
        assert looks > 0
        print(holding.get() != os.getpid(), broken.children.call_one().get())
        """
    )
    done.assert_clean()
    assert done.out == "True None\n"


def test_handler_leaves_no_process() -> None:
    done = run(
        """
        import ctypes
        from pathlib import Path
        from monarch._core.observe.inspection import STACKS
        from monarch._core.process.current import current_process

        class Holding(Actor):
            @endpoint
            def hold(self, seconds):
                ctypes.PyDLL(None).usleep(int(seconds * 1e6))
                own = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
                return [text for text in own if text]

        holding = this_host().spawn_procs().spawn("holding", Holding)
        holding.hold.call_one(0.0).get()
        call = holding.hold.call_one(2.0)
        cell = current_process().native.inspect(STACKS)
        cell.wait(0, 10.0)
        text = cell.results()[0].raw()
        assert b"the GIL is held" in text and b"in hold" in text, text
        print(call.get())
        """
    )
    done.assert_clean()
    assert done.out == "[]\n"
