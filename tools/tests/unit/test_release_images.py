"""The commands of a release of images; a program that records its arguments replaces docker, which is not available here."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools import release_images
from tools.project import JOBS
from tools.release_images import IMAGES, main

VERSION = tomllib.loads((JOBS / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that fails for the operator; the file has its arguments."""
    program, noted = tmp_path / "docker", tmp_path / "noted"
    program.write_text(f'#!/bin/sh\necho "$*" >>{noted}\ncase $* in *operator*) exit 7 ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(release_images, "DIST", tmp_path)
    return noted


def test_each_dockerfile_is_an_image() -> None:
    assert sorted(image.name for image in IMAGES) == sorted(path.name.partition(".")[0] for path in (JOBS / "images").glob("*.Dockerfile"))


def test_names_have_registry_version_and_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["registry.example/team/", "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tags = [line.split("--tag ")[1].split()[0].removeprefix("registry.example/team/") for line in lines]
    assert tags == [f"monarch:{VERSION}", f"monarch:{VERSION}-cuda", f"monarch:{VERSION}-rocm", f"monarch-operator:{VERSION}"]
    assert main(["r", "--nightly", "--print", "cuda"]) == 0
    assert "--tag r/monarch:nightly-cuda --push ." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["r", "arm"])
    assert "there is no image 'arm': slim, cuda, rocm, operator" in capsys.readouterr().err


def test_image_needs_the_wheels_of_its_platforms(docker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "monarch_core-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl").touch()
    assert main(["r"]) == 1
    assert capsys.readouterr().err == f"{tmp_path} has no wheel of monarch-core for linux/arm64\n" and not docker.exists()
    assert main(["r", "cuda"]) == 0
    assert docker.read_text().splitlines() == [
        f"buildx build --platform linux/amd64 --file packages/monarch-jobs/images/cuda.Dockerfile --tag r/monarch:{VERSION}-cuda --push ."
    ]


def test_failed_build_ends_the_release(docker: Path, tmp_path: Path) -> None:
    for machine in ("x86_64", "aarch64"):
        (tmp_path / f"monarch_core-0.1.0-cp311-abi3-manylinux_2_28_{machine}.whl").touch()
    assert main(["r", "operator", "slim"]) == 7
    assert len(docker.read_text().splitlines()) == 1
