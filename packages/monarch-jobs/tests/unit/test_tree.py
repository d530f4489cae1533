"""Trees as entries and back, and entries that are made up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monarch.job._host.tree import DATA, DIRECTORY, END, FILE, LINK, SKIPPED, Refused, TreeWriter, batches, destination, entries


@pytest.fixture
def place(folder: Path) -> Path:
    """An empty folder."""
    return folder


def write(root: Path, stream: list[tuple[Any, ...]]) -> TreeWriter:
    writer = TreeWriter(str(root))
    try:
        for batch in batches(stream):
            writer.put(batch)
        writer.finish()
    finally:
        writer.close()
    return writer


def listing(root: Path) -> dict[str, Any]:
    """Everything that a copy keeps."""
    found: dict[str, Any] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        at = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (content, None if path.is_symlink() else (oct(at.st_mode), at.st_mtime_ns))
    return found


def make(root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/empty").write_bytes(b"")
    (root / "a/b/large").write_bytes(os.urandom(3_000_000))
    (root / "a/b/large").chmod(0o640)
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "a/link").symlink_to("../run")
    (root / "away").symlink_to("/etc")
    (root / "a/b").chmod(0o555)
    os.utime(root / "run", ns=(10**18, 10**18 + 123456789))


def test_tree_is_copied_unchanged(place: Path) -> None:
    make(place / "from")
    assert write(place / "to", list(entries(str(place / "from")))).skipped == []
    assert listing(place / "to") == listing(place / "from")
    # The second copy overwrites existing files.
    (place / "to/a/b").chmod(0o755)
    write(place / "to", list(entries(str(place / "from"))))
    assert listing(place / "to") == listing(place / "from")


def test_single_file_is_copied_with_its_mode(place: Path) -> None:
    make(place / "from")
    write(place / "to", list(entries(str(place / "from/run"))))
    assert (place / "to").read_text() == "#!/bin/sh\n"
    assert (place / "to").stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(place)) == ["from", "to"]


def test_special_files_are_skipped(place: Path) -> None:
    (place / "from").mkdir()
    os.mkfifo(place / "from/pipe")
    stream = list(entries(str(place / "from")))
    assert stream[1][:2] == (SKIPPED, "pipe")
    assert write(place / "to", stream).skipped == [("pipe", "not a file, a directory or a link")]
    with pytest.raises(OSError, match="not a file"):
        list(entries(str(place / "from/pipe")))
    with pytest.raises(FileNotFoundError):
        list(entries(str(place / "nothing")))


TOP = (DIRECTORY, "", 0o755, 0)
BAD_NAMES = ["../x", "/etc/x", "a/../../x", "a//x", "./x", "..", "a/", "x\0y", "."]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("kind", [DIRECTORY, FILE, LINK])
def test_names_that_lead_outside_are_refused(place: Path, name: str, kind: int) -> None:
    made = {DIRECTORY: (DIRECTORY, name, 0o755, 0), FILE: (FILE, name, 0o644, 0), LINK: (LINK, name, "target")}[kind]
    with pytest.raises(Refused, match="refused"):
        write(place / "to", [TOP, (DIRECTORY, "a", 0o755, 0), made])
    assert sorted(os.listdir(place)) == ["to"]
    assert sorted(os.listdir(place / "to")) == ["a"]


def test_links_are_not_followed(place: Path) -> None:
    (place / "outside").mkdir()
    (place / "victim").write_text("as it was")
    for entry in [(FILE, "out/x", 0o644, 0), (DIRECTORY, "out/x", 0o755, 0), (LINK, "out/x", "y"), (DIRECTORY, "out", 0o777, 0)]:
        with pytest.raises(OSError):
            write(place / "to", [TOP, (LINK, "out", str(place / "outside")), entry, (END,)])
    # A link in the place of a file is replaced, and its target stays.
    write(place / "to", [TOP, (LINK, "file", str(place / "victim")), (FILE, "file", 0o644, 0), (DATA, b"new"), (END,)])
    assert (place / "victim").read_text() == "as it was"
    assert (place / "to/file").read_text() == "new"
    assert os.listdir(place / "outside") == []


@pytest.mark.parametrize(
    "stream",
    [
        [(DATA, b"x")],
        [TOP, (DATA, b"x")],
        [TOP, (END,)],
        [(DIRECTORY, "a", 0o755, 0)],
        [TOP, (FILE, "", 0o644, 0)],
    ],
)
def test_entries_without_sense(place: Path, stream: list[tuple[Any, ...]]) -> None:
    with pytest.raises(Refused):
        write(place / "to", stream)


def test_half_a_file_leaves_nothing(place: Path) -> None:
    (place / "old").write_text("old")
    writer = TreeWriter(str(place / "old"))
    writer.put([(FILE, "", 0o644, 0), (DATA, b"new")])
    writer.close()
    assert os.listdir(place) == ["old"]
    assert (place / "old").read_text() == "old"


def test_set_user_id_does_not_travel(place: Path) -> None:
    write(place / "to", [(FILE, "", 0o6755, 0), (END,)])
    assert (place / "to").stat().st_mode & 0o7777 == 0o755


def test_destination_depends_on_existing_directories(place: Path) -> None:
    assert destination(str(place), "x") == f"{place}/x"
    assert destination(f"{place}/new", "x") == f"{place}/new"
    assert destination(f"{place}/made/", "x") == f"{place}/made/x"
    assert (place / "made").is_dir()


def test_long_names_and_deep_trees_arrive(place: Path) -> None:
    names = ["n" * 255, "ä" * 127 + "n", "x" + "€" * 84]
    source, there = place / "deep", place / "there"
    source.mkdir()
    folder = os.open(source, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("folder", dir_fd=folder)
        folder, above = os.open("folder", os.O_RDONLY, dir_fd=folder), folder
        os.close(above)
    try:
        for name in names:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
            os.symlink(name, name[1:], dir_fd=folder)
        assert write(there, list(entries(str(source)))).skipped == []
        found = list(entries(str(there)))
        assert found == list(entries(str(source)))
        assert sum(entry[0] == DIRECTORY for entry in found) == 1001
        assert sorted(entry[1].rpartition("/")[2] for entry in found if entry[0] == FILE) == sorted(names)
    finally:
        os.close(folder)
        # Python's own removal of trees is recursive.
        subprocess.run(["rm", "-rf", source, there], check=True)


def test_errors_name_the_file_that_was_copied(place: Path) -> None:
    (place / "there/taken/inside").mkdir(parents=True)
    writer = TreeWriter(str(place / "there"))
    try:
        with pytest.raises(OSError) as found:
            writer.put([(DIRECTORY, "", 0o700, 0), (FILE, "taken", 0o600, 0), (END,)])
        assert found.value.filename == str(place / "there/taken")
    finally:
        writer.close()
    assert os.listdir(place / "there") == ["taken"]
