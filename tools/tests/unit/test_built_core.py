"""monarch-core as it was built last, for environments that compile nothing."""

from __future__ import annotations

import os
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from tools.built_core.__main__ import MODULE, made
from tools.project import CORE, ROOT


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_metadata_is_that_of_core() -> None:
    core = project(CORE)
    ours = project(ROOT / "tools" / "built_core")
    assert ours == {name: core[name] for name in ours}
    # Requirements and entry points have to be the same even if another one comes.
    names = {"dependencies", "entry-points", "optional-dependencies", "scripts"}
    assert names & set(core) == names & set(ours)


def test_module_comes_from_newest_wheel(tmp_path: Path) -> None:
    sources, wheels = tmp_path / "python", tmp_path / "dist"
    (sources / MODULE).parent.mkdir(parents=True)
    wheels.mkdir()
    assert not made(sources, wheels)
    for age, name in enumerate(("monarch_core-0.2.0-x.whl", "monarch_core-0.1.0-x.whl")):
        with zipfile.ZipFile(wheels / name, "w") as wheel:
            wheel.writestr(MODULE, name)
        os.utime(wheels / name, (0, 1_000 - age))
    assert made(sources, wheels)
    assert (sources / MODULE).read_text() == "monarch_core-0.2.0-x.whl"
    (sources / MODULE).write_text("built here")
    assert made(sources, wheels)
    assert (sources / MODULE).read_text() == "built here"
