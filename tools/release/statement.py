"""Checksums of the files of a release, and the statement of their provenance: in-toto Statement 1 with the predicate SLSA provenance 1.

https://in-toto.io/Statement/v1 and https://slsa.dev/spec/v1.0/provenance define the fields. The statement is not signed here: the forge
signs the digests of the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.build_dashboard import SOURCES
from tools.project import ROOT, RUST, commit_time
from tools.side_venv import PINS

CHECKSUMS, PROVENANCE = "SHA256SUMS", "provenance.intoto.json"
# The identity of the system that builds; a forge sets the variable.
_BUILDER = "MONARCH_RELEASE_BUILDER"
_REPOSITORY = "MONARCH_RELEASE_REPOSITORY"
_LOCKED = (RUST / "Cargo.lock", SOURCES / "package-lock.json", PINS / "zig.txt", PINS / "release.txt")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksums(files: list[Path]) -> str:
    """The text of a file for `sha256sum --check`."""
    return "".join(f"{digest(path)}  {path.name}\n" for path in files)


def provenance(files: list[Path], parameters: dict[str, Any]) -> str:
    """The statement about these files; `parameters` are those of the command."""
    commit = _output("git", "rev-parse", "HEAD")
    source = os.environ.get(_REPOSITORY, "monarch")
    time = datetime.fromtimestamp(commit_time(), UTC).isoformat()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:monarch:tools.release:1",
                "externalParameters": {"source": source, "commit": commit, **parameters},
                "internalParameters": {"SOURCE_DATE_EPOCH": str(commit_time()), "python": platform.python_version()},
                "resolvedDependencies": [
                    {"uri": f"git+{source}", "digest": {"gitCommit": commit}},
                    *({"name": str(path.relative_to(ROOT)), "digest": {"sha256": digest(path)}} for path in _LOCKED),
                    {"name": "rustc", "annotations": {"version": _output("rustc", "--version")}},
                ],
            },
            "runDetails": {"builder": {"id": os.environ.get(_BUILDER, "urn:monarch:checkout")}, "metadata": {"startedOn": time}},
        },
    }
    return json.dumps(statement, indent=1, sort_keys=True) + "\n"


def _output(*argv: str) -> str:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
