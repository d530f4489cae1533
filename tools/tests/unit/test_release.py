"""The parts of a release: versions, licences, notes, statements, the merge of machines, the workflow."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import ci_steps
from tools.project import CORE, ROOT
from tools.release import licences, merge, native, notes, statement, tree

WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
CHANGES = """# Changelog

## monarch-core 0.2.0 (unreleased)

- new

## monarch-core 0.1.0

- first
"""


@pytest.mark.parametrize("package", tree.packages(ROOT), ids=lambda package: package.name)
def test_nightly_requires_its_siblings_exactly(package: Path) -> None:
    project = tomllib.loads(tree.stamped((package / "pyproject.toml").read_text(encoding="utf-8"), 7))["project"]
    version = f"{tree.version(package)}.dev7"
    assert project["version"] == version
    extras = project.get("optional-dependencies", {}).values()
    wanted = [Requirement(text) for text in (*project.get("dependencies", ()), *(text for extra in extras for text in extra))]
    siblings = [one for one in wanted if one.name.startswith("monarch-") and (one.specifier or one.name != package.name)]
    assert all(str(one.specifier) == f"=={version}" and one.specifier.contains(version) for one in siblings)
    assert siblings or package == CORE


def test_licence_of_several_crates_is_there_once() -> None:
    used = [licences.Used(name, "1.0.0", "MIT", ("free\n",)) for name in ("one", "two")]
    page = licences.page(used)
    assert page.count("free") == 1 and "one 1.0.0, two 1.0.0" in page
    with pytest.raises(ValueError, match=r"three 1.0.0 has no text of its licence \(MIT\)"):
        licences.page([*used, licences.Used("three", "1.0.0", "MIT", ())])


def test_notes_want_a_section_for_each_wheel() -> None:
    text, problems = notes.notes(CHANGES, {"monarch-core": "0.1.0"}, final=True)
    assert "- first" in text and "- new" not in text and not problems
    text, problems = notes.notes(CHANGES, {"monarch-core": "0.2.0.dev7"}, final=False)
    assert "## monarch-core 0.2.0.dev7\n\n- new" in text and not problems
    assert notes.notes(CHANGES, {"monarch-core": "0.2.0"}, final=True)[1] == [
        "CHANGELOG.md: the section of monarch-core 0.2.0 is marked as unreleased"
    ]
    assert notes.notes(CHANGES, {"monarch-fs": "0.1.0"}, final=False)[1] == ["CHANGELOG.md: there is no section '## monarch-fs 0.1.0'"]


def test_compiled_files_are_those_of_the_package(tmp_path: Path) -> None:
    listing = tmp_path / "lib_native.d"
    listing.write_text(f"{tmp_path}/lib_native.so: {CORE}/rust/a\\ b.rs {CORE}/rust/net/src/lib.rs /elsewhere/lib.rs\n")
    assert native.compiled(listing) == [Path("rust/a b.rs"), Path("rust/net/src/lib.rs")]


def test_statement_has_the_digest_of_each_file(tmp_path: Path) -> None:
    path = tmp_path / "one.whl"
    path.write_bytes(b"one")
    digest = hashlib.sha256(b"one").hexdigest()
    found = json.loads(statement.provenance([path], {"nightly": None}))
    assert found["_type"] == "https://in-toto.io/Statement/v1" and found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [{"name": "one.whl", "digest": {"sha256": digest}}]
    assert re.fullmatch("[0-9a-f]{40}", found["predicate"]["buildDefinition"]["externalParameters"]["commit"])
    assert statement.checksums([path]) == f"{digest}  one.whl\n"


def test_merge_names_files_that_differ(tmp_path: Path) -> None:
    machines = [tmp_path / "machines" / name for name in ("a", "b")]
    for machine in machines:
        machine.mkdir(parents=True)
        (machine / "pure.whl").write_text("same")
        (machine / f"native_{machine.name}.whl").write_text(machine.name)
        (machine / statement.PROVENANCE).write_text(machine.name)
    assert merge.merge(machines, tmp_path / "all") == []
    assert (tmp_path / "all" / statement.CHECKSUMS).read_text().count("\n") == 5
    (machines[1] / "pure.whl").write_text("other")
    assert merge.merge(machines, tmp_path / "more") == ["b: pure.whl has other bytes than that of another machine"]


def test_workflow_has_steps_that_exist() -> None:
    steps = {step for words in re.findall(r"tools/hatch run test (.*)", WORKFLOW) for step in words.split()}
    assert {"build_wheels", "check_wheels"} <= steps <= {step.name for step in ci_steps.STEPS}
    modules = set(re.findall(r"python -m (tools\.[a-z_.]+)", WORKFLOW))
    assert modules == {"tools.release", "tools.release.merge", "tools.release_images"}
    assert {"x86_64", "aarch64"} == set(re.findall(r"machine: (\w+)", WORKFLOW))
