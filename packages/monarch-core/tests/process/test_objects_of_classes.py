"""Objects in globals of classes that were sent by value, at the end of a proc."""

from __future__ import annotations

from pathlib import Path

from fresh_script import run


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
