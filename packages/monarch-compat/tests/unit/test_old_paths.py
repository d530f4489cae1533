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


@pytest.mark.parametrize(
    ("module", "wheel"), [("rdma", "rdma"), ("remotemount", "fs"), ("spmd", "spmd"), ("telemetry", "telemetry"), ("tensor", "tensor")]
)
def test_missing_wheel_is_named_at_first_import(module: str, wheel: str) -> None:
    """Without site-packages, so that only monarch-core and this wheel are there."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(WHEEL), str(CORE)])}
    argv = [sys.executable, "-S", "-c", f"import monarch.{module}"]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert f"ModuleNotFoundError: monarch.{module} needs the wheel monarch-{wheel}, which is not installed" in done.stderr
    assert f"pip install ./packages/monarch-{wheel}" in done.stderr


def test_missing_core_is_an_ordinary_error() -> None:
    variables = {**os.environ, "PYTHONPATH": str(WHEEL)}
    argv = [sys.executable, "-S", "-c", "import monarch.actor"]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip().splitlines()[-1] == "ModuleNotFoundError: No module named 'monarch.actor'"


def test_dispatch_table_holds_for_messages() -> None:
    """A reducer of the table, and what the table has for a type without one."""
    code = """
from monarch._src.actor import pickle as old
from monarch.extension.pickling import dumps, loads
class Box:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return self.value == other.value
old._ensure_torch_pickle()
old._Pickler._init_torch_dispatch()
own = old._Pickler._dispatch_table[Box]
function, arguments = own(Box(1))[:2]
old._TorchPickler.dispatch_table[Box] = lambda box: (Box, (box.value + 1,))
print(loads(*dumps(Box(1))).value)
del old._Pickler._dispatch_table[Box]
print(loads(*dumps(Box(1))).value, Box not in old._Pickler._dispatch_table)
try: old._Pickler()
except TypeError as e: print(e)
"""
    told = "this pickler of torchmonarch 0.7 does not exist here: write dumps and loads of monarch.extension.pickling"
    assert output(code, "-W", "ignore") == f"2\n1 True\n{told}\n"


def test_forwarder_of_records_is_a_handler() -> None:
    code = (
        "import logging\nfrom monarch._src.actor.telemetry import TracingForwarder\n"
        "logger = logging.getLogger('x'); logger.addHandler(TracingForwarder()); logger.warning('text'); print(logger.handlers[0].level)"
    )
    assert output(code, "-W", "ignore") == "0\n"
