"""Mounted trees against the directories that they were made of, over refreshes, with readers that hold and open files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fs_real_tree import LIMIT, RealMount, mounted_directory

pytestmark = pytest.mark.usefixtures("back_end")

NAMES = ["a", "b", "c", "d", "e\udcff"]

# Prints everything visible below a directory.
DUMP = """
import hashlib, json, os, stat, sys
top, names = sys.argv[1], sys.argv[2:]
links, seen = {}, {}
def look(path, shown):
    s = os.lstat(path)
    row = [stat.S_IFMT(s.st_mode), stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns]
    if stat.S_ISDIR(s.st_mode):
        listed = sorted(os.scandir(path), key=lambda e: e.name)
        row += [[(e.name, e.is_dir(follow_symlinks=False), e.is_symlink(), e.inode() == os.lstat(e.path).st_ino) for e in listed]]
        row += [[name for name in names if os.path.lexists(path + "/" + name)]]
        for e in listed: look(e.path, shown + "/" + e.name)
    elif stat.S_ISLNK(s.st_mode): row += [os.readlink(path), s.st_size]
    else:
        data = open(path, "rb", 0).read(1 << 24)
        row += [s.st_size, s.st_nlink, hashlib.sha256(data).hexdigest(), links.setdefault(s.st_ino, shown)]
    seen[shown] = row
look(top, "")
print(json.dumps(seen, sort_keys=True))
"""


def shown(folder: Path) -> dict[str, object]:
    command = [sys.executable, "-S", "-c", DUMP, str(folder), *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def edit(source: Path, random: Random) -> None:
    directories = [source, *(path for path in source.rglob("*") if path.is_dir() and not path.is_symlink())]
    parent = random.choice(directories)
    path = parent / random.choice(NAMES)
    before = parent.stat()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    others = [one for one in source.rglob("*") if one.is_file() and not one.is_symlink()]
    match random.randrange(7):
        case 0 | 1:
            path.write_bytes(random.choice([b"", b"text", random.randbytes(30), bytes(300_000), random.randbytes(10) * 200_000]))
        case 2:
            path.mkdir()
        case 3:
            path.symlink_to(random.choice(NAMES))
        case 4 if others:
            os.link(random.choice(others), path)
        case 5 if others:
            random.choice(others).rename(path)
        case 6 if others:
            one = random.choice(others)
            one.chmod(random.choice([0o600, 0o755]))
        case _:
            pass
    if random.random() < 0.3:
        # As after a tool that restores times: the listing changes, the time of the directory does not.
        os.utime(parent, ns=(before.st_mtime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("seed", range(3))
def test_mount_equals_its_directory_over_refreshes(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    source = tmp_path / "source"
    source.mkdir()
    for _ in range(30):
        edit(source, random)
    with mounted_directory(source, tmp_path) as mount:
        for turn in range(6):
            assert shown(mount.target) == shown(source)
            before = shown(source)
            for _ in range(random.randrange(1, 6)):
                edit(source, random)
            if turn == 3:
                mount.restart()
            assert shown(mount.target) == before
            mount.refresh()
        assert shown(mount.target) == shown(source)


# Keeps its open files, and prints the state again after a line of input.
HOLDER = """
import mmap, os, sys
os.chdir(sys.argv[1] + "/d/e")
kept = os.open("../kept", os.O_RDONLY); changed = os.open("../changed", os.O_RDONLY); gone = os.open("gone", os.O_RDONLY)
m = mmap.mmap(changed, 0, prot=mmap.PROT_READ)
number = os.fstat(kept).st_ino
assert os.listdir(".") == ["gone"]
print("holds", flush=True); sys.stdin.readline()
tail = lambda fd: os.pread(fd, 1 << 22, 0)
print(tail(kept) == b"kept" * 9, tail(changed) == b"o" * 2000000, m[:] == b"o" * 2000000, tail(gone) == b"gone")
print(os.stat("../kept").st_ino == number if os.path.exists("../kept") else "no parent", os.listdir("."), os.path.exists("gone"))
print(os.stat(sys.argv[1] + "/d/kept").st_ino == number, open(sys.argv[1] + "/d/changed").read())
"""


@pytest.mark.parametrize("restart", [False, True])
def test_open_files_and_directories_outlive_a_refresh(tmp_path: Path, restart: bool) -> None:
    source = tmp_path / "source"
    (source / "d" / "e").mkdir(parents=True)
    (source / "d" / "kept").write_bytes(b"kept" * 9)
    (source / "d" / "changed").write_bytes(b"o" * 2_000_000)
    (source / "d" / "e" / "gone").write_bytes(b"gone")
    with mounted_directory(source, tmp_path) as mount:
        command = [sys.executable, "-S", "-c", HOLDER, str(mount.target)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
            shutil.rmtree(source / "d" / "e")
            (source / "d" / "changed").write_bytes(b"new")
            if restart:
                mount.restart()
            mount.refresh()
            if restart:
                mount.restart()
            text, _ = holder.communicate("look\n", timeout=LIMIT)
        lines = text.strip().split("\n")
        assert lines[0] == "True True True True", text
        assert lines[1] in ("True [] False", "no parent [] False"), text
        assert lines[2] == "True new", text


# Opens files at random. Each generation has its number in every line of every file; a shared counter has the highest number that any reader
# found. Generation n has one file `new<n>`. A reader that slept may find a later generation, so it looks for each name in turn: the
# generation only grows, and cannot pass the last name.
OPENER = """
import mmap, os, random, struct, sys
top, shared, count, refreshes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
fd = os.open(shared, os.O_RDWR); m = mmap.mmap(fd, 16); held = []; turn = 0; last = False
print("starts", flush=True)
while turn < count or not last:
    turn += 1; last = m[8] == 1
    least = struct.unpack("q", m[:8])[0]
    name = random.choice(["/f%d", "/d/f%d", "/l%d"]) % random.randrange(5)
    f = os.open(top + name, os.O_RDONLY)
    data = b"".join(iter(lambda: os.read(f, 1 << 20), b""))
    lines = data.split()
    assert len(set(lines)) == 1 and len(lines) in (4000, 50000), (name, set(lines), len(lines))
    seen = int(lines[0])
    assert seen >= least, (name, seen, least)
    if seen > struct.unpack("q", m[:8])[0]: m[:8] = struct.pack("q", seen)
    assert any(os.path.exists("%s/new%d" % (top, number)) for number in range(seen, refreshes + 1)), seen
    if turn % 50 == 0: held.append((f, data))
    else: os.close(f)
    if len(held) > 20:
        f, data = held.pop(0); assert os.pread(f, 1 << 22, 0) == data[:1 << 22]; os.close(f)
print("ended at", seen)
"""


def storm(mount: RealMount, folder: Path, refreshes: int, readers: int, opens: int) -> None:
    """Readers open files while the mount is refreshed; raises for a torn file, or one of an earlier generation than was seen."""
    shared = folder / "highest"
    shared.write_bytes(bytes(16))
    command = [sys.executable, "-S", "-c", OPENER, str(mount.target), str(shared), str(opens), str(refreshes)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(readers)]
    try:
        for one in running:
            assert one.stdout is not None and one.stdout.readline() == "starts\n"
        for number in range(1, refreshes + 1):
            write(mount.source, number)
            mount.refresh()
            ended = next((one for one in running if one.poll() is not None), None)
            assert ended is None or ended.stdout is None, f"a reader ended early: {ended.stdout.read()[-800:]}"
        # Each reader opens at least once more: after a refresh every open is new.
        with shared.open("r+b") as file:
            file.seek(8)
            file.write(b"\1")
        for one in running:
            text, _ = one.communicate(timeout=600 if opens > 10_000 else LIMIT)
            assert text.strip() == f"ended at {refreshes}", text[-400:]
    finally:
        for one in running:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


def write(source: Path, number: int) -> None:
    (source / "d").mkdir(exist_ok=True)
    for name in [f"{folder}f{n}" for folder in ("", "d/") for n in range(5)]:
        temporary = source / "temporary"
        temporary.write_bytes(b"%06d\n" % number * (50_000 if name == "f4" else 4_000))
        temporary.rename(source / name)
    for n in range(5):
        (source / f"l{n}").unlink(missing_ok=True)
        (source / f"l{n}").symlink_to(f"d/f{n}" if number % 2 else f"f{n}")
    (source / f"new{number - 1}").unlink(missing_ok=True)
    (source / f"new{number}").write_bytes(b"")


def test_opens_during_refreshes_never_step_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write(source, 0)
    with mounted_directory(source, tmp_path) as mount:
        storm(mount, tmp_path, refreshes=12, readers=2, opens=2000)
