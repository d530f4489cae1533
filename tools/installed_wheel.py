"""A wheel, installed for a test: modules, entry points and metadata, in a folder for the module path."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

Groups = Mapping[str, Mapping[str, str]]


def install(
    folder: Path, name: str, groups: Groups, modules: Mapping[str, str] | None = None, version: str = "1.0", requires: Sequence[str] = ()
) -> Path:
    """Writes the wheel into a folder, and returns the folder; `modules` has the source of each by name."""
    for module, source in (modules or {}).items():
        (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    wants = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}", encoding="utf-8")
    lines = [line for group, entries in groups.items() for line in (f"[{group}]", *(f"{key} = {to}" for key, to in entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Adds the folder to the module path of this process, and of processes started from now on."""
    from monarch._core.config.entry_points import forget

    patch.syspath_prepend(folder)  # pyright: ignore[reportUnknownMemberType]
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    forget()


@contextmanager
def used(folder: Path) -> Generator[None]:
    """`use`, until the block ends."""
    from monarch._core.config.entry_points import forget

    with pytest.MonkeyPatch.context() as patch:
        use(folder, patch)
        yield
    forget()
