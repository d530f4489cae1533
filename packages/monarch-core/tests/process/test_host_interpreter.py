"""An interpreter of a host with modules of its own, like that of a mounted environment."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from monarch.actor import Actor, endpoint
from monarch.actor.testing import local_hosts


class Importer(Actor):
    @endpoint
    def imported(self, name: str) -> tuple[str, str]:
        return sys.prefix, importlib.import_module(name).PLACE


def test_procs_elsewhere_have_the_modules_of_their_interpreter(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "only_in_the_environment.py").write_text("PLACE = 'environment'\n")
    with local_hosts(1) as hosts:
        procs = hosts.with_python_executable(f"{environment}/bin/python").spawn_procs()
        found = procs.spawn("importer", Importer).imported.call_one("only_in_the_environment").get()
    assert found == (str(environment), "environment")
