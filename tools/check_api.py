"""Compares the public names of every wheel with the checked-in files under docs/api.

    python -m tools.check_api --check     print the differences, exit 1 if there are any
    python -m tools.check_api --write     rewrite the files

A wheel that needs PyTorch is left out if PyTorch is missing.

A change of a file is a change of the interface for users, and is reviewed as one: a removal takes one minor release of warnings.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys

from tools.project import ROOT
from tools.public_names import describe

WHEELS = {
    "monarch-core": (
        "monarch.actor",
        "monarch.actor.recovery",
        "monarch.actor.testing",
        "monarch.config",
        "monarch.extension",
        "monarch.extension.bulk",
        "monarch.extension.channel",
        "monarch.extension.cli",
        "monarch.extension.command",
        "monarch.extension.debug",
        "monarch.extension.directory_tree",
        "monarch.extension.events",
        "monarch.extension.facade",
        "monarch.extension.gitignore",
        "monarch.extension.inspection",
        "monarch.extension.masking",
        "monarch.extension.mesh",
        "monarch.extension.pickling",
        "monarch.extension.trace",
    ),
    "monarch-jobs": ("monarch.job", "monarch.job.spmd"),
    "monarch-rdma": ("monarch.rdma", "monarch.rdma.weights"),
    "monarch-fs": ("monarch.fs", "monarch.gather_mount", "monarch.remotemount"),
    "monarch-spmd": ("monarch.spmd",),
    "monarch-telemetry": ("monarch.telemetry", "monarch.telemetry.detectors", "monarch.distributed_telemetry"),
    "monarch-tensor": ("monarch.tensor",),
}
# Wheels that cannot be imported without PyTorch: `python -m tools.with_torch python -m tools.check_api ...` includes them.
NEED_TORCH = ("monarch-tensor",)
FOLDER = ROOT / "docs" / "api"


def surface(modules: tuple[str, ...]) -> str:
    """The text of one file."""
    return "\n\n".join("\n".join(describe(importlib.import_module(name))) for name in modules) + "\n"


def main(arguments: list[str]) -> int:
    if arguments not in (["--check"], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    different = False
    without = importlib.util.find_spec("torch") is None
    for wheel, modules in WHEELS.items():
        if without and wheel in NEED_TORCH:
            print(f"{wheel} is left out: it needs PyTorch, python -m tools.with_torch python -m tools.check_api {arguments[0]}")
            continue
        path = FOLDER / f"{wheel}.txt"
        new = surface(modules)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if arguments == ["--write"]:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
            continue
        name = str(path.relative_to(ROOT))
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "what the code has now", lineterm="", n=1)
        text = "\n".join(lines)
        if text:
            print(text)
            print(f"{name} differs; if that is meant: python -m tools.check_api --write")
            different = True
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
