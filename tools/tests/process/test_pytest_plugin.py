"""The plug-in for pytest, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tools.project import ROOT

PLUGIN = ROOT / "plugins" / "pytest-monarch"
ACTOR = """
import pytest
from monarch.actor import Actor, current_rank, endpoint

class Work(Actor):
    @endpoint
    def rank(self):
        return current_rank().rank

    @endpoint
    def fail(self):
        raise ValueError("no data")
"""


def run(folder: Path, code: str) -> str:
    """The output of pytest for a file of tests."""
    (folder / "test_it.py").write_text(ACTOR + textwrap.dedent(code))
    (folder / "pytest.ini").write_text("[pytest]\n")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "--strict-markers",
        "-p",
        "pytest_monarch",
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    env = {**os.environ, "PYTHONPATH": str(PLUGIN), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True).stdout


def test_fixtures_are_meshes_of_the_marks(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        @pytest.mark.procs(gpus=3)
        def test_procs(proc_mesh):
            assert proc_mesh.spawn("work", Work).rank.call().get().values() == [0, 1, 2]
            assert proc_mesh.sizes == {"gpus": 3}

        def test_default(proc_mesh):
            assert proc_mesh.sizes == {"procs": 2}

        @pytest.mark.hosts(1)
        def test_hosts(host_mesh):
            assert host_mesh.spawn_procs({"gpus": 1}).spawn("work", Work).rank.call().get().values() == [0]

        def test_universe(universe):
            assert universe.hosts(2).spawn_procs().spawn("work", Work).rank.call().get().values() == [0, 1]
        """,
    )
    assert "4 passed" in said, said


def test_failure_without_owner_fails_the_test(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        def test_failing(proc_mesh, unhandled_failures):
            proc_mesh.spawn("work", Work).fail.broadcast()
            # The hook runs on a thread of its own.
            unhandled_failures.put(unhandled_failures.get(timeout=20))

        def test_expected(proc_mesh, mesh_failures):
            proc_mesh.spawn("work", Work).slice(procs=0).fail.broadcast()
            assert "no data" in mesh_failures.get(timeout=20).report()

        def test_next(proc_mesh):
            assert proc_mesh.spawn("work", Work).rank.call().get().values() == [0, 1]
        """,
    )
    assert "3 passed, 1 error" in said, said
    assert "ValueError: no data" in said
