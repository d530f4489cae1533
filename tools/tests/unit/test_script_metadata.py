"""The metadata by which uv runs an example of the checkout."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tools.project import ROOT

EXAMPLE = ROOT / "examples" / "digits.py"
# The block of https://packaging.python.org/en/latest/specifications/inline-script-metadata/
BLOCK = re.compile(r"^# /// script\n((?:#.*\n)+?)# ///\n", re.MULTILINE)


def test_example_names_all_that_it_imports() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    found = BLOCK.match(text)
    assert found is not None
    metadata = tomllib.loads("".join(line[2:] for line in found[1].splitlines(keepends=True)))
    names = {Requirement(requirement).name for requirement in metadata["dependencies"]}
    imported = set(re.findall(r"^ *(?:from|import) (matplotlib|numpy|sklearn|monarch\.actor)\b", text, re.MULTILINE))
    modules = {"matplotlib": "matplotlib", "monarch-core": "monarch.actor", "numpy": "numpy", "scikit-learn": "sklearn"}
    assert {modules[name] for name in names} == imported
    for name, source in metadata["tool"]["uv"]["sources"].items():
        project = tomllib.loads((EXAMPLE.parent / source["path"] / "pyproject.toml").read_text(encoding="utf-8"))
        assert name in names and project["project"]["name"] == name
