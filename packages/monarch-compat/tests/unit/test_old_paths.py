"""Import paths of torchmonarch 0.7 with monarch-compat: what resolves, what warns, and what ends with advice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

WHEEL = Path(__file__).resolve().parents[2] / "python"
CHECK = Path(__file__).resolve().parents[1] / "old_paths_check.py"
CORE = WHEEL.parents[1] / "monarch-core" / "python"


def run(code: str, *flags: str, path: Path = WHEEL) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with the wheel on its path."""
    argv = [sys.executable, *flags, "-c", code]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60, check=False)


def output(code: str, *flags: str, path: Path = WHEEL) -> str:
    done = run(code, *flags, path=path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def error(code: str, *flags: str) -> str:
    """The last line of the traceback."""
    done = run(code, *flags)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_every_row_is_the_public_object() -> None:
    argv = [sys.executable, str(CHECK), "core"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(WHEEL)}, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert re.fullmatch(r"\d{3} rows; \d+ modules without a home\n", done.stdout), done.stdout


def test_import_of_the_package_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import monarch; print(sorted(set(sys.modules) - before - {'__future__'}))"
    assert output(code, "-W", "error") == "['monarch', 'monarch._old_paths']\n"


def test_public_modules_warn_about_nothing() -> None:
    code = "import monarch, monarch.job; print(monarch.actor.Actor.__name__, monarch.job.JobTrait.__name__)"
    assert output(code, "-W", "error") == "Actor JobTrait\n"


def test_old_module_pickles_by_name() -> None:
    """By the pickler of messages as well, in the globals of a function of `__main__`."""
    code = """
import copy, pickle
import monarch.actor_mesh as old
from monarch.extension.pickling import dumps, loads
def use(): return old
print(pickle.loads(pickle.dumps(old)) is old, copy.copy(old) is old, loads(*dumps(use))() is old)
"""
    assert output(code, "-W", "error") == "True True True\n"


def test_siblings_of_a_used_name_warn_not() -> None:
    code = "from monarch._src.actor import actor_mesh, proc_mesh\ntry: actor_mesh.Actor\nexcept DeprecationWarning: print('one')"
    assert output(code, "-W", "error::DeprecationWarning") == "one\n"


def test_old_path_warns_once() -> None:
    code = "from monarch import configure\nfrom monarch import configure\nimport monarch; monarch.configure"
    assert run(code, "-W", "always").stderr.count("DeprecationWarning") == 1


def test_star_import_takes_public_names() -> None:
    assert output("from monarch.proc_mesh import *; print(ProcMesh.__name__)", "-W", "ignore") == "ProcMesh\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from monarch import world_mesh", "ImportError: monarch.world_mesh of torchmonarch 0.7 does not exist here: it made the mesh"),
        ("import monarch.common.mast", "ModuleNotFoundError: monarch.common.mast of torchmonarch 0.7 does not exist here: it started"),
        ("from monarch import notebook", "ImportError: monarch.notebook of torchmonarch 0.7 does not exist here: it started"),
        (
            "import monarch._src.actor.waker",
            "ModuleNotFoundError: monarch._src.actor.waker of torchmonarch 0.7 does not exist here: it was",
        ),
        ("from monarch._src.actor.actor_mesh import _Actor", "ImportError: monarch._src.actor.actor_mesh._Actor of torchmonarch 0.7"),
    ],
)
def test_name_without_a_home_has_advice(code: str, expected: str) -> None:
    text = error(code)
    assert text.startswith(expected)
    assert text.endswith("(docs/migration.md)")


def test_unknown_names_are_ordinary_errors() -> None:
    assert error("import monarch; monarch.nothing") == "AttributeError: module 'monarch' has no attribute 'nothing'"
    assert error("import monarch.nothing") == "ModuleNotFoundError: No module named 'monarch.nothing'"
    assert error("from monarch import nothing").startswith("ImportError: cannot import name 'nothing' from 'monarch'")


def test_no_name_has_a_home_and_none() -> None:
    code = (
        "from monarch._old_modules import gone, homes\n"
        "print([(m, n) for m, names in gone.NAMES.items() for n in names if homes.home(m, n)])\n"
        "print([m for m in gone.NAMES if m not in homes.MODULES])"
    )
    assert output(code) == "[]\n[]\n"


def test_late_folder_has_its_portion(tmp_path: Path) -> None:
    (tmp_path / "monarch" / "late").mkdir(parents=True)
    (tmp_path / "monarch" / "late" / "__init__.py").write_text("here = 1")
    code = f"import sys, monarch; sys.path.append({str(tmp_path)!r}); import monarch.late; print(monarch.late.here)"
    assert output(code, "-W", "error") == "1\n"


def test_context_is_read_without_a_client() -> None:
    code = (
        "from monarch._src.actor import actor_mesh as a\n"
        "print(a._context.get(None))\n"
        "try: a._context.get()\n"
        "except LookupError as e: print(e)"
    )
    assert output(code, "-W", "ignore") == "None\nthere is no context here: monarch.actor.context() makes one\n"


def test_proc_program_by_hand_ends_with_reason() -> None:
    argv = [sys.executable, "-m", "monarch._src.actor.bootstrap_main"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(WHEEL)}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "no host started this process: MONARCH_PROC_FDS is not set\n")


def test_foreign_package_is_named(tmp_path: Path) -> None:
    package = tmp_path / "monarch"
    package.mkdir()
    (package / "__init__.py").write_text(f"__path__.append({str(CORE / 'monarch')!r})")
    done = run("import monarch.actor", "-W", "always", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"RuntimeWarning: {package / '__init__.py'} belongs to another package" in done.stderr
    assert "`pip uninstall monarch torchmonarch`" in done.stderr
