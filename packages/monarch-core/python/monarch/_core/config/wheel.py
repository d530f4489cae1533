"""The wheels of this project: how users install them, and the errors for missing wheels.

No package index has them yet: they come from a checkout, or from `dist/`, where `tools/hatch run wheels` puts them. On the public index the
name `monarch` belongs to another project, so no text of this project may lead there; a test checks that.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The existing wheels, by folder of `packages`.
EXISTING = (
    "monarch-core",
    "monarch-jobs",
    "monarch-rdma",
    "monarch-fs",
    "monarch-telemetry",
    "monarch-spmd",
    "monarch-tensor",
    "monarch-compat",
    "monarch-suite",
)
# Packages of other projects that take the name of the namespace: their `monarch/__init__.py` hides modules of this project.
FOREIGN = ("monarch", "torchmonarch")
# Modules and verbs of the command, by the wheel that provides them.
_MODULES = {
    "monarch.job": "monarch-jobs",
    "monarch.rdma": "monarch-rdma",
    "monarch.fs": "monarch-fs",
    "monarch.gather_mount": "monarch-fs",
    "monarch.remotemount": "monarch-fs",
    "monarch.telemetry": "monarch-telemetry",
    "monarch.distributed_telemetry": "monarch-telemetry",
    "monarch.spmd": "monarch-spmd",
    "monarch.tensor": "monarch-tensor",
}
_VERBS = {
    "monarch-jobs": ("apply", "context", "cp", "exec", "heal", "kill", "logs", "port-forward", "shell", "status"),
    "monarch-rdma": ("rdma",),
    "monarch-fs": ("mount", "mounts", "push", "refresh", "umount"),
    "monarch-telemetry": ("capture", "dashboard", "mcp", "profile", "query", "tui"),
    "monarch-spmd": ("run",),
}
# The prefixes of the keys of a wheel's settings.
_SETTINGS = {"rdma_": "monarch-rdma", "fs_": "monarch-fs"}


def install_hint(wheel: str) -> str:
    """How to install a wheel of this project."""
    if wheel not in EXISTING:
        return f"{wheel} is not released yet"
    return f"`pip install ./packages/{wheel}` in a checkout, or `pip install --find-links dist {wheel}`"


def needs_wheel(what: str, wheel: str) -> str:
    """The text of the error for a feature of another wheel, of this version or a later one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(wheel)
    except PackageNotFoundError:
        return f"{what} needs the wheel {wheel}, which is not installed\nhint: {install_hint(wheel)}"
    return f"{what} needs a later version of {wheel}: {found}, which is installed, does not have it"


def missing_wheel(what: str, wheel: str) -> NotImplementedError:
    """The error for a feature of a wheel that is missing."""
    return NotImplementedError(needs_wheel(what, wheel))


def broken_wheel(what: str, broken: str) -> NotImplementedError:
    """The error for a feature of a wheel whose entry point cannot be loaded. `broken` describes the entry point."""
    wheel = broken.partition(" ")[0]
    return NotImplementedError(f"{what} cannot be used\n  {broken}\nhint: install a version of {wheel} that fits this monarch-core")


def wheel_of_verb(verb: str) -> str | None:
    """The wheel that adds a verb to the `monarch` command."""
    return next((wheel for wheel, verbs in _VERBS.items() if verb in verbs), None)


def wheel_of_setting(key: str) -> str | None:
    """The wheel that declares the settings with this prefix."""
    return next((wheel for prefix, wheel in _SETTINGS.items() if key.startswith(prefix)), None)


class MissingWheels:
    """The last finder of modules: every module that reaches it is not installed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        wheel = _MODULES.get(name)
        if wheel is not None:
            raise ModuleNotFoundError(needs_wheel(name, wheel), name=name)


def _warn_of_foreign_package() -> None:
    package = sys.modules["monarch"]
    place = getattr(package, "__file__", None)
    # A namespace has no file, and monarch-compat has a finder for the portions of all wheels.
    if place is not None and not hasattr(package, "_old_paths"):
        import warnings

        text = f"{place} belongs to another package, which hides modules of this project: `pip uninstall {' '.join(FOREIGN)}`"
        warnings.warn(f"{text}, then {install_hint('monarch-core')}", RuntimeWarning, stacklevel=2)


_warn_of_foreign_package()
sys.meta_path.append(MissingWheels)  # pyright: ignore[reportArgumentType]
