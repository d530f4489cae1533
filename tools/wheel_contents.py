"""The permitted content of a wheel of this project, and the problems of a wheel with other content."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tools.build_wheels import GLIBC
from tools.elf import unstripped_sections

MB = 1_000_000


class Allowed(NamedTuple):
    """The portions of the namespace that a distribution owns, and its largest size."""

    portions: tuple[str, ...]
    download: int
    installed: int
    tag: str


# The only wheel with files right under the namespace.
_COMPAT = ("monarch/_old_modules/", "monarch/__init__.py", "monarch/_old_paths.py")
WHEELS = {
    "monarch_core": Allowed(
        ("monarch/_core/", "monarch/actor/", "monarch/config/", "monarch/extension/"), 6 * MB, 15 * MB, f"cp311-abi3-{GLIBC}_"
    ),
    "monarch_jobs": Allowed(("monarch/job/",), MB, 2 * MB, "py3-none-any"),
    "monarch_rdma": Allowed(("monarch/rdma/",), MB, 2 * MB, "py3-none-any"),
    "monarch_fs": Allowed(("monarch/fs/", "monarch/gather_mount/", "monarch/remotemount/"), MB, 2 * MB, "py3-none-any"),
    "monarch_telemetry": Allowed(("monarch/telemetry/", "monarch/distributed_telemetry/"), MB, 2 * MB, "py3-none-any"),
    "monarch_spmd": Allowed(("monarch/spmd/",), MB, MB, "py3-none-any"),
    "monarch_tensor": Allowed(("monarch/tensor/",), MB, 2 * MB, "py3-none-any"),
    "monarch_compat": Allowed(_COMPAT, MB // 10, MB // 10, "py3-none-any"),
    "monarch_suite": Allowed((), MB // 10, MB // 10, "py3-none-any"),
}
# Wheels that depend on PyTorch, which is not installed for a check of wheels.
NEED_TORCH = ("monarch_tensor",)


def problems(path: Path) -> Iterator[str]:
    """All problems of the wheel at `path`."""
    distribution, _, tag = path.stem.split("-", 2)
    allowed = WHEELS.get(distribution)
    if allowed is None:
        yield f"'{distribution}' is no wheel of this project"
        return
    if not tag.startswith(allowed.tag):
        yield f"tag '{tag}', expected '{allowed.tag}'"
    if path.stat().st_size > allowed.download:
        yield f"{path.stat().st_size:,} bytes to download, the limit is {allowed.download:,}"
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        installed = sum(entry.file_size for entry in entries)
        if installed > allowed.installed:
            yield f"{installed:,} bytes installed, the limit is {allowed.installed:,}"
        yield from _stray(distribution, allowed, [entry.filename for entry in entries])
        for entry in entries:
            if entry.filename.endswith(".so"):
                yield from _extension(entry.filename, archive.read(entry))


def _stray(distribution: str, allowed: Allowed, names: list[str]) -> Iterator[str]:
    for name in names:
        path = PurePosixPath(name)
        if path.parent == PurePosixPath("monarch") and path.stem == "__init__" and name not in allowed.portions:
            yield f"{name}: 'monarch' is a namespace shared by several wheels: only monarch-compat has an __init__"
        elif path.parts[0].startswith(f"{distribution}-") and path.parts[0].endswith(".dist-info"):
            continue
        elif not name.startswith(allowed.portions or ("\0",)):
            yield f"{name}: outside the portions of '{distribution}': {', '.join(allowed.portions) or 'none'}"
        elif path.suffix in (".pyc", ".rs", ".toml") or {"tests", "__pycache__"} & set(path.parts):
            yield f"{name}: does not belong into a wheel"
    for portion in allowed.portions:
        if portion.endswith("/") and f"{portion}py.typed" not in names:
            yield f"{portion}py.typed: missing, type checkers would ignore the annotations"


def _extension(name: str, image: bytes) -> Iterator[str]:
    try:
        left = unstripped_sections(image)
    except ValueError as error:
        yield f"{name}: {error}"
        return
    if left:
        yield f"{name}: not stripped: {', '.join(left)}"
