"""The notes of a release: the section of each wheel and version in CHANGELOG.md.

A nightly build has the section of the version that it precedes. A final release has no section that is marked as unreleased.
"""

from __future__ import annotations

import re

_HEADING = re.compile(r"^## (monarch-[a-z]+) (\S+)( \(unreleased\))?$")


def sections(changelog: str) -> dict[tuple[str, str], tuple[bool, str]]:
    """By wheel and version: whether the section is marked as unreleased, and its text."""
    found: dict[tuple[str, str], tuple[bool, list[str]]] = {}
    lines: list[str] = []
    for line in changelog.splitlines():
        heading = _HEADING.match(line)
        if heading is not None:
            lines = []
            found[heading[1], heading[2]] = (heading[3] is not None, lines)
        else:
            lines.append(line)
    return {key: (unreleased, "\n".join(text).strip()) for key, (unreleased, text) in found.items()}


def notes(changelog: str, versions: dict[str, str], final: bool) -> tuple[str, list[str]]:
    """The notes for these versions of wheels, and the problems: wheels without a section, and unreleased ones if the release is final."""
    known = sections(changelog)
    pages: list[str] = []
    problems: list[str] = []
    for wheel, version in versions.items():
        unreleased, text = known.get((wheel, version.partition(".dev")[0]), (False, ""))
        if not text:
            problems.append(f"CHANGELOG.md: there is no section '## {wheel} {version}'")
        elif final and unreleased:
            problems.append(f"CHANGELOG.md: the section of {wheel} {version} is marked as unreleased")
        pages.append(f"## {wheel} {version}\n\n{text}\n")
    return "\n".join(["# Changes", "", *pages]), problems
