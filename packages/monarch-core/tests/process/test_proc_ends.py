"""What runs at the end of a proc: all that runs at the end of any Python program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_script import run

# Its functions write a line to a file when they run.
MODULE = """
import asyncio, atexit, colorsys, ctypes, os, socket, sqlite3, tempfile, threading, weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

folder = Path(__file__).parent
lines = os.open(folder / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

# Globals may be cleared before this runs.
def note(word, write=os.write, lines=lines):
    write(lines, word.encode() + b"\\n")

class Ending:
    def __init__(self, word):
        self.word = word
        self.note, self.array = note, numpy.arange(3)
    def __del__(self):
        self.note(f"{self.word} {len(self.array)}")

class Ended:
    pass

def wait():
    # This thread is joined by the end of the interpreter, which is the end of the main thread.
    threading.main_thread().join()
    note("thread")

def begin():
    global kept, cycle, ended, file, pair, pool, folder_of_its_own, database, memory, called
    kept, cycle, ended = Ending("module"), Ending("cycle"), Ended()
    cycle.itself = cycle
    colorsys.ending = Ending("standard module")
    weakref.finalize(ended, note, "finalizer")
    atexit.register(note, "exit handler")
    file = open(folder / "file", "w")
    file.write("buffered")
    pair = socket.socketpair()
    pair[0].send(b"unread")
    # Threads of actors, and so the threads that they start, are daemons.
    threading.Thread(target=wait, daemon=False).start()
    pool = ThreadPoolExecutor(2)
    pool.submit(int).result()
    folder_of_its_own = tempfile.TemporaryDirectory(dir=folder)
    atexit.register(folder_of_its_own.cleanup)
    database = sqlite3.connect(":memory:", check_same_thread=False)
    memory = numpy.memmap(folder / "memory", dtype="uint8", mode="w+", shape=4)
    memory[:] = 1
    called = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    called()
    asyncio.run(asyncio.sleep(0))
    atexit.register(lambda: (file.close(), pair[0].close(), pair[1].close(), database.close()))
"""
BODIES = {"sync": ("def", "at_end.begin()"), "async": ("async def", "await asyncio.to_thread(at_end.begin)")}
NOTED = ["cycle 3", "exit handler", "finalizer", "module 3", "standard module 3", "thread"]


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("how", ["stop", "end of program", "failure"])
def test_proc_ends_like_a_python_program(kind: str, how: str, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "at_end.py").write_text(MODULE)
    keyword, body = BODIES[kind]
    done = run(
        f"""
import asyncio
import monarch.actor
from monarch.actor import SupervisionError
sys.path.insert(0, {str(tmp_path)!r})
monarch.actor.unhandled_fault_hook = lambda failure: None

class Beginning(Actor):
    @endpoint
    {keyword} begin(self):
        import at_end
        {body}
    @endpoint
    {keyword} fail(self):
        raise SystemExit(3)

procs = this_host().spawn_procs()
beginning = procs.spawn("beginning", Beginning)
beginning.begin.call_one().get()
if {how == "failure"}:
    try:
        beginning.fail.call_one().get()
    except SupervisionError:
        pass
if {how != "end of program"}:
    procs.stop().get()
"""
    )
    done.assert_clean()
    assert sorted((tmp_path / "lines").read_text().splitlines()) == NOTED
    assert (tmp_path / "file").read_text() == "buffered"
    assert (tmp_path / "memory").read_bytes() == b"\1" * 4
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["at_end.py", "file", "lines", "memory"]


def test_finalisation_leaves_the_modules_of_the_zygote() -> None:
    """Those of the standard library: all others may have objects of the program."""
    code = """
import atexit, json, os, sys
from monarch._core.start import shared_modules

shared_modules.prepare()
import cloudpickle
shared_modules.share()
if os.fork() == 0:
    import colorsys
    atexit._run_exitfuncs()
    names = ("json.decoder", "colorsys", "cloudpickle", "monarch._core.start.shared_modules", "sys", "builtins", "__main__")
    print(json.dumps([name for name in names if name not in sys.modules]), flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["json.decoder"]


ORDERLY = """
import contextvars, ctypes, os, sys, threading
from monarch._core.start import shared_modules

held, value = threading.local(), contextvars.ContextVar("value")

class Ending:
    def __init__(self, word, write=os.write):
        self.word, self.write = word, write
    def __del__(self):
        self.write(1, self.word)

shared_modules.prepare()
shared_modules.share()
pid = os.fork()
if pid:
    ended = os.waitpid(pid, 0)[1]
    os.write(1, b"code " + str(os.waitstatus_to_exitcode(ended)).encode())
    os._exit(0)
shared_modules.is_orderly = True
kept = Ending(b"module ")
held.ending, held.file = Ending(b"local "), open(sys.argv[1], "w")
held.file.write("buffered")
value.set(Ending(b"context "))
"""


@pytest.mark.parametrize(
    "body, printed, code",
    [
        ("", "module local context ", 0),
        # The last function of an extension, `abort`, runs.
        ("ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)", "module local context ", -6),
        # Python reports that it cannot write its streams.
        ("sys.stdout = open('/dev/full', 'w'); print('lost')", "module local context ", 120),
    ],
)
def test_orderly_proc_ends_all_objects_first(body: str, printed: str, code: int, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ORDERLY + body, tmp_path / "file"], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted([*printed.split(), "code", str(code)])
    assert (tmp_path / "file").read_text() == "buffered"
