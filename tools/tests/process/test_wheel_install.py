"""Wheels are installed into an empty environment and imported there without any environment variable."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from tools import wheel_install

NAME = "monarch_core-0.1.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def fake_wheel(folder: Path, actor: str) -> Path:
    path = folder / f"{NAME}-py3-none-any.whl"
    files = {
        "monarch/actor/__init__.py": actor,
        "monarch/_core/cli/__init__.py": "def main(): ...",
        f"{NAME}.dist-info/METADATA": "Metadata-Version: 2.1\nName: monarch-core\nVersion: 0.1.0\n",
        f"{NAME}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{NAME}.dist-info/entry_points.txt": "[console_scripts]\nmonarch = monarch._core.cli:main\n",
    }
    with ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{NAME}.dist-info/RECORD", "".join(f"{name},,\n" for name in (*files, f"{NAME}.dist-info/RECORD")))
    return path


def installed(folder: Path, actor: str) -> Path:
    python = wheel_install.create(folder / "empty")
    wheel_install.install(python, [fake_wheel(folder, actor)])
    return python


def test_light_module_passes(folder: Path) -> None:
    seen = wheel_install.probe(installed(folder, "import os\nassert 'HOME' not in os.environ\n"), folder, times=2)
    assert seen.problems == []
    assert seen.own == ["monarch.actor"]
    assert seen.milliseconds > 0


def test_heavy_imports_and_threads_are_refused(folder: Path) -> None:
    actor = "import asyncio, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    seen = wheel_install.probe(installed(folder, actor), folder, times=2)
    assert seen.problems == ["import monarch.actor loads asyncio", "import monarch.actor starts a thread"]


def test_too_many_own_modules_are_refused(folder: Path) -> None:
    actor = (
        "import sys, types\nfor i in range(15):\n    m = types.ModuleType(f'monarch.m{i}'); m.__file__ = 'x'; sys.modules[m.__name__] = m\n"
    )
    (problem,) = wheel_install.probe(installed(folder, actor), folder, times=2).problems
    assert problem.startswith("import monarch.actor loads 16 own modules, the limit is 15: monarch.actor monarch.m0 ")


def test_failing_or_noisy_module_is_shown(folder: Path) -> None:
    python = installed(folder, "import warnings\nwarnings.warn('odd')\n")
    with pytest.raises(RuntimeError, match="exit code 1 with an empty environment:\n(?s:.*)odd"):
        wheel_install.probe(python, folder)
