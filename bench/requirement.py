"""The requirements of a benchmark beside the development environment. Missing ones are named, with the command, before the benchmark
starts.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

# A bench that is run as a file has its own folder on the path, and not the checkout.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
# The exit code for a wrong command line, too.
_MISSING = 2


class Requirement(NamedTuple):
    """A requirement. `missing` is empty if it is met; `remedy` is the command to run, from the checkout."""

    missing: str
    remedy: str


def root(why: str) -> Requirement:
    """The user root."""
    return Requirement("" if os.geteuid() == 0 else f"root: {why}", "run it as root")


def packages(category: str) -> str:
    """The command that installs Debian's packages of a category."""
    return f"bash tools/system_packages.sh {category}"


def program(name: str, remedy: str) -> Requirement:
    """A program on `PATH`."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    return Requirement("" if found else f"the program {name}", remedy)


def cargo() -> Requirement:
    """The tool that builds and runs the examples of the Rust crates."""
    return program("cargo", "install Rust, by rustup or by the packages of the distribution")


def module(name: str, remedy: str) -> Requirement:
    """A module of this interpreter."""
    return Requirement("" if importlib.util.find_spec(name) is not None else f"the Python module {name} in {sys.executable}", remedy)


def namespaces() -> Requirement:
    """Hosts in network namespaces."""
    from tools.netns import unavailable

    return Requirement(unavailable() or "", f"{packages('test')}, and root")


def pyfuse3() -> Requirement:
    """The back end of monarch-fs that is built from source."""
    return module("pyfuse3", f"bash tools/pyfuse3.sh {sys.executable}")


def slurm() -> Requirement:
    """A SLURM cluster of this machine."""
    from tools.slurm.cluster import missing

    return Requirement(missing() or "", f"{packages('slurm')}, and root")


def kubernetes() -> Requirement:
    """A Kubernetes cluster of this machine."""
    from tools.k8s.cluster import missing

    return Requirement(missing(), f"{packages('k8s')}, python -m tools.k8s build, and root")


def require(*requirements: Requirement) -> None:
    """Ends this program with code 2 if a requirement is missing. Prints all missing ones, a line each with the remedy."""
    missing = dict.fromkeys(one for one in requirements if one.missing)
    if missing:
        bench = os.path.basename(sys.argv[0])
        print("\n".join(f"{bench}: needs {one.missing}\n  to do: {one.remedy}" for one in missing), file=sys.stderr)
        sys.exit(_MISSING)
