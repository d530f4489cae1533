"""Benchmarks name their requirements before they start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.project import ROOT


def run(bench: str, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of stderr of a bench, without programs on the path and without the optional modules."""
    code = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(('pyfuse3', 'torch', 'torchstore', 'matplotlib')))\n"
        f"sys.path.insert(0, 'bench'); sys.argv[:] = [{bench!r}, *{arguments!r}]\n"
        f"runpy.run_path('bench/{bench}', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_bench_of_mounts_names_its_requirements() -> None:
    code, lines = run("fs.py", "--only", "requests", "--only", "hosts", "--only", "relay")
    assert code == 2
    needs = [line for line in lines if line.startswith("fs.py: needs ")]
    assert len(needs) == len(set(needs)) and len(lines) == 2 * len(needs)
    text = "\n".join(lines)
    assert f"needs the Python module pyfuse3 in {sys.executable}\n  to do: bash tools/pyfuse3.sh {sys.executable}" in text
    assert "nft" in text and "to do: bash tools/system_packages.sh test, and root" in text
    # A part that needs none of these does not require them.
    _, lines = run("fs.py", "--only", "reads")
    assert not any("pyfuse3" in line or "nft" in line for line in lines)


@pytest.mark.parametrize(
    ("bench", "arguments", "remedy"),
    [
        ("hosts.py", (), "bash tools/system_packages.sh test, and root"),
        ("recovery_slurm.py", (), "bash tools/system_packages.sh slurm, and root"),
        ("spmd_recovery.py", ("--hosts", "1,netns"), "bash tools/system_packages.sh test, and root"),
        ("scale.py", ("--plot", "x.png"), "pip install matplotlib"),
        ("tensor.py", (), "python -m tools.side_venv torch, then python -m tools.with_torch python bench/tensor.py"),
        (
            "weights.py",
            ("torchstore",),
            "python -m pip install --no-deps --target FOLDER torchstore==0.1.2 pygtrie, "
            "then PYTHONPATH=FOLDER python -m tools.with_torch python bench/weights.py torchstore",
        ),
        ("telemetry.py", ("dashboard",), "bash tools/system_packages.sh browser"),
    ],
)
def test_bench_names_the_command_that_installs(bench: str, arguments: tuple[str, ...], remedy: str) -> None:
    code, lines = run(bench, *arguments)
    assert code == 2 and f"  to do: {remedy}" in lines, lines
