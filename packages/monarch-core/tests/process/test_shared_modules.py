"""The end of a process with modules of another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fresh_script import run

# An object in a module that the child shares lives on; objects in its own modules end as usual.
SCRIPT = """
import gc, os, sys, json, types
from monarch._core.start import shared_modules

shared_modules.prepare()
shared_modules.share()
gc.freeze()
if os.fork():
    os.wait()
    sys.exit()

class Ending:
    def __init__(self, text):
        self.text = text
    def __del__(self):
        os.write(1, json.dumps(self.text).encode())

json.ending = Ending("shared")
module = sys.modules["own"] = types.ModuleType("own")
module.ending = Ending("own")
sys.modules["__main__"] = types.ModuleType("__main__")
sys.modules["__main__"].ending = Ending("main")
"""


def test_only_own_modules_end_with_the_process():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20, check=True)
    assert sorted(done.stdout.split('"')[1::2]) == ["main", "own"]
    assert done.stderr == ""


def test_parent_keeps_its_modules():
    script = (
        "import atexit, sys; atexit.register(lambda: print('json' in sys.modules)); import json\n"
        "from monarch._core.start import shared_modules\n"
        "shared_modules.prepare(); shared_modules.share(); atexit._run_exitfuncs(); print('json' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_global_file_of_an_actor_class_is_written(tmp_path: Path) -> None:
    done = run(
        f"""
class Writer(Actor):
    @endpoint
    def write(self):
        global file
        file = open({str(tmp_path / "lines")!r}, "w")
        file.write("a line")

procs = this_host().spawn_procs()
procs.spawn("writer", Writer).write.call_one().get()
procs.stop().get()
say("done")
"""
    )
    done.assert_clean()
    assert (tmp_path / "lines").read_text() == "a line"
