"""Gather mounts of real hosts: live files, listings, rotation, errors, hosts that are lost, clients that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fs_gather_hosts import declare_gather

from monarch.actor import this_host
from monarch.fs._gather.gather_mount import gather


@pytest.fixture(scope="module", autouse=True)
def declared(tmp_path_factory: pytest.TempPathFactory) -> None:
    declare_gather(tmp_path_factory.mktemp("entries"))


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "out.log").write_text("first\n")
    return folder


@pytest.fixture
def local(tmp_path: Path) -> str:
    return str(tmp_path / "local")


def read(script: str, *arguments: str | os.PathLike[str]) -> str:
    argv = [sys.executable, "-S", "-c", f"import os, sys\nt = sys.argv[1]\n{script}", *(os.fspath(argument) for argument in arguments)]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


def test_a_host_without_dimensions_is_shown_at_the_mount_point(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local):
        assert read("print(open(t + '/logs/out.log').read())", local) == "first"
        assert read("print(os.listdir(t), os.listdir(t + '/logs'))", local) == "['logs'] ['out.log']"
    assert not os.path.ismount(local) and not os.path.exists(local)
