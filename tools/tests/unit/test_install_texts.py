"""Texts of the repository about installing: they name existing packages, and never a package of another project."""

from __future__ import annotations

import re
import tomllib

import pytest

from monarch._core.config.wheel import EXISTING, FOREIGN, install_hint, missing_wheel
from tools.project import PACKAGES, ROOT, files
from tools.wheel_contents import WHEELS

_COMMAND = re.compile(r"pip3? install([^`\n]*)")
# Extras of wheels that are installed already.
_EXTRAS = "kubernetes|skypilot|torchx|verbs|pyfuse3|http|mcp|otel|otel-grpc|perfetto|stacks|tui"
_NAME = re.compile(rf"""(?:^|[\s'"(])(monarch(?:[-_][a-z]+)?)(?:\[(?!(?:{_EXTRAS})\])[^\]]*\])?(?=$|[\s'"\])>=<~.,;:*]|-\*)""")
_KINDS = (".md", ".py", ".rs", ".toml", ".sh", ".rst", ".txt")


def by_index(text: str) -> list[str]:
    """Packages of this namespace that commands in a text take from an index: those without a folder before their names.

    A command with `--find-links` takes them from a folder.
    """
    return [name for command in _COMMAND.findall(text) if "--find-links" not in command for name in _NAME.findall(command)]


def test_no_text_installs_from_an_index() -> None:
    # The line that holds once the wheels are published.
    expected = ["README.md: monarch-suite", "docs/install.md: monarch-suite"]
    found: list[str] = []
    for path in files():
        if path.suffix in _KINDS and path.name not in ("CHANGELOG.md", "test_install_texts.py"):
            found += [f"{path}: {name}" for name in by_index((ROOT / path).read_text(encoding="utf-8"))]
    assert sorted(found) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pip install monarch", ["monarch"]),
        ("`pip install -U monarch` and more", ["monarch"]),
        ("pip install 'monarch>=0.1'", ["monarch"]),
        ("needs it: pip install monarch-tensor\n", ["monarch-tensor"]),
        ("$ pip install monarch_core-*.whl monarch-*.whl", ["monarch_core", "monarch"]),
        ("pip install ./packages/monarch-core dist/monarch_jobs-*.whl", []),
        ("pip install monarchs", []),
        ("pip install monarch[jobs] 'monarch-suite[all]'", ["monarch", "monarch-suite"]),
        # The extra of an installed wheel needs no index for the wheel itself.
        ("pip install 'monarch-rdma[verbs]'", []),
        ("pip install 'monarch-telemetry[http]'", []),
    ],
)
def test_texts_that_install_from_an_index(text: str, names: list[str]) -> None:
    assert by_index(text) == names


def test_wheels_are_the_folders_of_packages() -> None:
    folders = {path.parent.name: tomllib.loads(path.read_text())["project"]["name"] for path in PACKAGES.glob("*/pyproject.toml")}
    assert all(folder == name for folder, name in folders.items())
    assert set(EXISTING) == set(folders) == {name.replace("_", "-") for name in WHEELS}
    assert not set(FOREIGN) & set(folders)


def test_hints_name_what_exists() -> None:
    assert (
        install_hint("monarch-jobs")
        == "`pip install ./packages/monarch-jobs` in a checkout, or `pip install --find-links dist monarch-jobs`"
    )
    assert all((PACKAGES / name).is_dir() and f"./packages/{name}`" in install_hint(name) for name in EXISTING)
    assert (
        str(missing_wheel("rref", "monarch-later"))
        == "rref needs the wheel monarch-later, which is not installed\nhint: monarch-later is not released yet"
    )
