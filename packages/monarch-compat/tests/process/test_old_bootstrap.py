"""The program of a proc under its name in torchmonarch 0.7, run by a wrapper as programs for it do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from monarch.actor import Actor, BootstrapCommand, Point, current_rank, endpoint, this_host

WHEEL = Path(__file__).resolve().parents[2] / "python"


class Which(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank


def test_wrapper_runs_the_old_module(tmp_path: Path) -> None:
    wrapper, started = tmp_path / "wrapper", tmp_path / "started"
    wrapper.write_text(f'#!/bin/sh\necho started >> "{started}"\nexec "{sys.executable}" -m monarch._src.actor.bootstrap_main\n')
    wrapper.chmod(0o755)
    command = BootstrapCommand(str(wrapper), args=[], env={"PYTHONPATH": str(WHEEL)})
    procs = this_host().spawn_procs({"procs": 2}, bootstrap_command=command)
    try:
        assert sorted(procs.spawn("which", Which).rank.call().get(timeout=30).values()) == [0, 1]
        assert started.read_text().splitlines() == ["started"] * 2
    finally:
        procs.stop().get(timeout=30)


# A program that registers a reducer with the old pickler, then runs the proc, before any actor is imported.
PATCHED = """
import os, runpy
from monarch._src.actor import pickle as old
old._ensure_torch_pickle()
old._Pickler._init_torch_dispatch()
old._Pickler._dispatch_table[range] = lambda given: (list, (list(given),))
os.environ["DEVICE"] = "DEVICE of " + os.environ["LOCAL"]
runpy.run_module("monarch._src.actor.bootstrap_main", run_name="__main__")
"""


class Patched(Actor):
    @endpoint
    def numbers(self) -> tuple[object, str]:
        return range(2), os.environ["DEVICE"]


def test_program_runs_before_imports_of_each_rank() -> None:
    def command(point: Point) -> BootstrapCommand:
        return BootstrapCommand(sys.executable, args=["-c", PATCHED], env={"PYTHONPATH": str(WHEEL), "LOCAL": str(point["procs"])})

    procs = this_host().spawn_procs({"procs": 2}, bootstrap_command=command)
    try:
        found = list(procs.spawn("patched", Patched).numbers.call().get(timeout=30).values())
        assert found == [([0, 1], "DEVICE of 0"), ([0, 1], "DEVICE of 1")]
    finally:
        procs.stop().get(timeout=30)
