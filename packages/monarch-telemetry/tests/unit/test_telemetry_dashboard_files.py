"""Which file of the dashboard a path leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.telemetry._dashboard.files import BUILD, CONTENT_SECURITY_POLICY, Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<p>page</p>")
    (static / "assets" / "index-a1.js").write_text("1")
    (static / "notes.py").write_text("no type")
    (static / "link.txt").symlink_to(tmp_path / "secret.txt")
    return static


@pytest.mark.parametrize(
    "path", ["", "/", "/logs", "/charts", "/explorer/mesh/4611686018427387907", "/explorer/node/aG9zdDoxMQ", "/index.html"]
)
def test_path_of_a_page_gives_the_shared_page(folder: Path, path: str) -> None:
    found = Files(folder).get(path)
    assert found is not None
    assert (found.media, found.data) == ("text/html; charset=utf-8", b"<p>page</p>")
    assert found.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert found.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/assets/../index.html",
        "//secret.txt",
        "/./index.html",
        "/assets",
        "/assets/",
        "/link.txt",
        "/notes.py",
        "/nothing",
        "/index.html\0",
        "\\..\\secret.txt",
    ],
)
def test_other_paths_lead_to_nothing(folder: Path, path: str) -> None:
    assert Files(folder).get(path) is None
    assert Files(folder).get(f"/{folder.parent}/secret.txt") is None


def test_file_with_a_hashed_name_is_cacheable(folder: Path) -> None:
    found = Files(folder).get("/assets/index-a1.js")
    assert found is not None
    assert (found.media, found.data, found.immutable) == ("text/javascript; charset=utf-8", b"1", True)
    assert "immutable" in found.headers["Cache-Control"]


def test_tag_changes_with_the_bytes(folder: Path) -> None:
    before = Files(folder).get("/")
    (folder / "index.html").write_text("<p>other</p>")
    after = Files(folder).get("/")
    assert before is not None and after is not None
    assert before.etag != after.etag
    assert before.etag.startswith('"')


def test_checkout_without_a_build_has_no_dashboard(folder: Path) -> None:
    assert Files(folder).is_built
    empty = Files(folder / "missing")
    assert (empty.is_built, empty.names, empty.get("/assets/index-a1.js")) == (False, (), None)


@pytest.mark.parametrize("path", ["/", "/logs", "/explorer/mesh/4611686018427387907"])
def test_page_without_build_has_the_commands(folder: Path, path: str) -> None:
    found = Files(folder / "missing").get(path)
    assert found is not None and (found.status, found.media) == (503, "text/html; charset=utf-8")
    text = found.data.decode()
    assert all(command in text for command in BUILD) and BUILD[1] == "pip install ./packages/monarch-telemetry"
    assert "<script" not in text and "style" not in text


def test_policy_allows_nothing_inline_or_foreign() -> None:
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none';")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


def test_files_are_read_once(folder: Path) -> None:
    files = Files(folder)
    first = files.get("/assets/index-a1.js")
    os.unlink(folder / "assets" / "index-a1.js")
    assert files.get("/assets/index-a1.js") is first
