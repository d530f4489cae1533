"""The program of a proc under its name in torchmonarch 0.7, run by a wrapper as programs for it do."""

from __future__ import annotations

import sys
from pathlib import Path

from monarch.actor import Actor, BootstrapCommand, current_rank, endpoint, this_host

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
