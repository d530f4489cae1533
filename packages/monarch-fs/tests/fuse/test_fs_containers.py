"""Containers out of a mount: an unpacked root that is entered, images that are mounted and unpacked there."""

from __future__ import annotations

import os
import runpy
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.fs import mount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="enters roots and mounts images: root is needed")

EXAMPLE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "container_root.py"))
make_root: Callable[[Path], None] = EXAMPLE["make_root"]
make_layout: Callable[[Path, Path], None] = EXAMPLE["make_layout"]


def run(*argv: str | os.PathLike[str]) -> str:
    return subprocess.run([os.fspath(word) for word in argv], check=True, capture_output=True, text=True, timeout=20).stdout


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is missing: tools/system_packages.sh fuse installs it")
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    make_root(made / "root")
    return made


def no_program(name: str) -> None:
    """As `shutil.which` on a machine without busybox."""


def listing(root: Path) -> str:
    """What another process finds: kind and mode, owner, size, names of the inode, path, target of a link."""
    return run("sh", "-c", 'cd "$1" && find . -printf "%M %U:%G %s %n %P -> %l\\n" | grep -v "^d" | sort', "sh", root)


def test_entered_root_has_the_sources_modes_and_links(source: Path, tmp_path: Path) -> None:
    root, target = source / "root", tmp_path / "mounted"
    (root / "tmp").chmod(0o1777)
    (root / "bin" / "tool").write_text("#!/bin/sh\necho $0 $1\n")
    (root / "bin" / "tool").chmod(0o4755)
    os.link(root / "bin" / "tool", root / "bin" / "same tool")
    os.chown(root / "etc" / "greeting", 1234, 5678)
    (root / "etc" / "link").symlink_to("/etc/greeting")
    with (root / "etc" / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 20)
        file.write(b"middle")
    # There is no device: it could not be opened on a mount without devices.
    os.mkfifo(root / "pipe")
    with mount(this_host(), source, str(target), pyc="as-is"):
        assert listing(target / "root") == "".join(line for line in listing(root).splitlines(True) if not line.startswith("p"))
        script = "read text </etc/link; echo $text; /bin/tool 'a b'; test -u /bin/tool && test -k /tmp && echo bits; ls / 2>/dev/null; true"
        lines = run("unshare", f"--root={target}/root", "/bin/sh", "-c", script).splitlines()
        assert lines[:3] == ["a file of the client", "/bin/tool a b", "bits"]
        held = run("stat", "-c", "%b %s", target / "root" / "etc" / "sparse").split()
        assert int(held[0]) * 512 <= 2 << 20 and held[1] == str(1 << 30)
        with pytest.raises(subprocess.CalledProcessError) as error:
            run("unshare", f"--root={target}/root", "/bin/sh", "-c", "echo x >/etc/new")
        assert "Read-only file system" in error.value.stderr


def test_root_of_shared_libraries_is_entered(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", no_program)
    make_root(source / "dynamic")
    monkeypatch.undo()
    target = tmp_path / "mounted"
    with mount(this_host(), source, str(target), pyc="as-is", fetch="demand"):
        assert (
            run("unshare", f"--root={target}/dynamic", "/bin/sh", "-c", "read text </etc/greeting; echo $text") == "a file of the client\n"
        )
    assert any((source / "dynamic").rglob("ld-*"))


def test_process_in_a_root_survives_a_refresh(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "mounted"
    with mount(this_host(), source, str(target), pyc="as-is") as mounted:
        script = "cd /etc; echo ready; read line; read text <greeting; echo $text"
        argv = ["unshare", f"--root={target}/root", "/bin/sh", "-c", script]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as entered:
            assert entered.stdin is not None and entered.stdout is not None
            assert entered.stdout.readline() == "ready\n"
            (source / "root" / "etc" / "greeting").write_text("edited\n")
            mounted.refresh().get(timeout=20)
            assert entered.communicate("go on\n", timeout=20)[0] == "edited\n"


@pytest.mark.parametrize("how", ["loop device", "squashfuse"])
def test_squashfs_image_is_mounted_out_of_the_mount(source: Path, tmp_path: Path, how: str) -> None:
    needs("mksquashfs")
    if how == "squashfuse":
        mounting = f'{needs("squashfuse")} "$1" "$2"'
    elif "squashfs" not in Path("/proc/filesystems").read_text():
        pytest.skip("the kernel has no SquashFS")
    else:
        mounting = 'mount -t squashfs -o loop,ro "$1" "$2"'
    (source / "root" / "large").write_bytes(os.urandom(8 << 20))
    (tmp_path / "inner").mkdir()
    image, target = source / "root.squashfs", tmp_path / "mounted"
    run("mksquashfs", source / "root", image, "-quiet", "-no-progress")
    with mount(this_host(), source, str(target), pyc="as-is", exclude=("root",), fetch="demand"):
        script = (
            f'{mounting} && cmp "$2/large" "$3" && unshare --root="$2" /bin/sh -c "read text </etc/greeting; echo \\$text"; umount "$2"'
        )
        argv = ["unshare", "--mount", "sh", "-ec", script, "sh", target / image.name, tmp_path / "inner", source / "root" / "large"]
        assert run(*argv) == "a file of the client\n"
    assert not os.path.ismount(target)


def test_layout_is_unpacked_from_the_mount(source: Path, tmp_path: Path) -> None:
    make_layout(source / "root", source / "layout")
    target, unpacked = tmp_path / "mounted", tmp_path / "unpacked"
    with mount(this_host(), source, str(target), pyc="as-is"):
        script = "import runpy, sys, pathlib; runpy.run_path(sys.argv[1])['unpack'](pathlib.Path(sys.argv[2]), sys.argv[3])"
        run(os.environ.get("PYTHON", "python3"), "-c", script, EXAMPLE["__file__"], target / "layout", unpacked)
    assert listing(unpacked) == listing(source / "root")
    assert run("unshare", f"--root={unpacked}", "/bin/sh", "-c", "read text </etc/greeting; echo $text") == "a file of the client\n"


def test_damaged_blob_of_a_layout_is_refused(source: Path, tmp_path: Path) -> None:
    make_layout(source / "root", source / "layout")
    largest = max((source / "layout" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.raises(ValueError, match="the content of sha256:.* is another one"):
        EXAMPLE["unpack"](source / "layout", str(tmp_path / "unpacked"))


def test_device_files_are_not_usable(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "mounted"
    try:
        os.mknod(source / "root" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")
    with mount(this_host(), source, str(target), pyc="as-is"):
        assert "null" not in run("ls", target / "root").split()


def test_writing_container_has_an_overlay_over_the_mount(source: Path, tmp_path: Path) -> None:
    target, host = tmp_path / "mounted", tmp_path / "host"
    host.mkdir()
    script = """
        mount -t tmpfs none "$2" && mkdir "$2/upper" "$2/work" "$2/merged"
        mount -t overlay -o "lowerdir=$1/root,upperdir=$2/upper,workdir=$2/work" none "$2/merged"
        unshare --root="$2/merged" /bin/sh -c 'echo written >>/etc/greeting; echo new >/etc/new'
        cat "$2/merged/etc/greeting" "$2/merged/etc/new"
    """
    with mount(this_host(), source, str(target), pyc="as-is"):
        assert run("unshare", "--mount", "sh", "-ec", script, "sh", target, host) == "a file of the client\nwritten\nnew\n"
        assert run("cat", target / "root" / "etc" / "greeting") == "a file of the client\n"
