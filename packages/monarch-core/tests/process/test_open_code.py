"""The opening of modules by procs: CPython's hook for code."""

import io
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host


class Opener(Actor):
    @endpoint
    def kind(self) -> str:
        with io.open_code(__file__) as file:
            return f"{type(file).__name__} {file.read(12).decode()}"

    @endpoint
    def missing(self) -> str:
        try:
            io.open_code("/nowhere/module.py")
        except OSError as e:
            return f"{type(e).__name__} {e.filename}"
        return ""


def test_procs_read_modules_unbuffered() -> None:
    actor = this_host().spawn_procs().spawn("opener", Opener)
    assert actor.kind.call_one().get() == f"FileIO {Path(__file__).read_text()[:12]}"
    assert actor.missing.call_one().get() == "FileNotFoundError /nowhere/module.py"
    with io.open_code(__file__) as file:
        assert isinstance(file, io.BufferedReader)
