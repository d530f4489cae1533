"""The checks of `monarch doctor`, on machines that are not this one."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from monarch._core.observe import doctor
from monarch._core.observe.doctor import Line

INFINITE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """The resource limits in the checks; a test fills them in."""
    found: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: found[which])
    return found


@pytest.mark.parametrize(
    ("soft", "hard", "todo"),
    [
        (INFINITE, INFINITE, ""),
        (1024, 1024, ""),
        (1023, 1 << 20, "run `ulimit -n 65536` before the script"),
        (256, 4096, "run `ulimit -n 4096` before the script"),
        (256, 512, "raise the hard limit too, which is 512"),
    ],
)
def test_open_files(limits: dict[int, tuple[int, int]], soft: int, hard: int, todo: str) -> None:
    limits[resource.RLIMIT_NOFILE] = (soft, hard)
    line = doctor.open_files()
    assert line.todo.startswith(todo) and bool(line.todo) == bool(todo)


@pytest.mark.parametrize(("user", "finding"), [(1000, True), (0, False)])
def test_process_limit_does_not_hold_for_root(
    limits: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch, user: int, finding: bool
) -> None:
    limits[resource.RLIMIT_NPROC] = (100, 100)
    monkeypatch.setattr(doctor, "_pids_of_group", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert bool(doctor.threads().todo) == finding


def test_full_container_is_a_finding(limits: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    limits[resource.RLIMIT_NPROC] = (INFINITE, INFINITE)
    monkeypatch.setattr(doctor, "_pids_of_group", lambda: (900, 1000))
    line = doctor.threads()
    assert "1,000 with 900 in use" in line.text and "--pids-limit" in line.todo


@pytest.mark.parametrize(("most", "found"), [("1000\n", (12, 1000)), ("max\n", None)])
def test_bounds_of_a_control_group(tmp_path: Path, most: str, found: tuple[int, int] | None) -> None:
    (tmp_path / "pids.max").write_text(most)
    (tmp_path / "pids.current").write_text("12\n")
    assert doctor._pids_of_group(str(tmp_path)) == found
    assert doctor._pids_of_group(str(tmp_path / "nothing")) is None


@pytest.mark.parametrize(("devices", "soft", "finding"), [([], 65536, False), (["mlx5_0"], 65536, True), (["mlx5_0"], INFINITE, False)])
def test_locked_memory_matters_to_rdma(
    limits: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch, devices: list[str], soft: int, finding: bool
) -> None:
    limits[resource.RLIMIT_MEMLOCK] = (soft, INFINITE)
    monkeypatch.setattr(doctor, "_entries", lambda folder: devices)
    assert bool(doctor.locked_memory().todo) == finding


def test_forbidden_memfd_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    assert doctor.anonymous_memory().todo == ""
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert "seccomp" in doctor.anonymous_memory().todo


def test_missing_folder_is_a_finding(tmp_path: Path) -> None:
    assert doctor.shared_folder(str(tmp_path / "nothing")).todo


@pytest.mark.parametrize(("installed", "finding"), [("1.0", True), (None, False)])
def test_fuse_matters_to_monarch_fs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, finding: bool) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: installed)
    assert bool(doctor.fuse(str(tmp_path / "nothing")).todo) == finding


@pytest.mark.parametrize(("source", "finding"), [("tsc\n", False), ("kvm-clock\n", False), ("acpi_pm\n", True)])
def test_slow_clock_is_a_finding(tmp_path: Path, source: str, finding: bool) -> None:
    (tmp_path / "current_clocksource").write_text(source)
    assert bool(doctor.clock(str(tmp_path)).todo) == finding
    assert doctor.clock(str(tmp_path / "nothing")).todo == ""


@pytest.mark.parametrize(("found", "todo"), [("3.1.2", ""), ("2.9", "too old"), (None, "pip install")])
def test_old_packages_are_a_finding(monkeypatch: pytest.MonkeyPatch, found: str | None, todo: str) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: {"cloudpickle": found, "monarch": None, "torchmonarch": None}.get(name, "99.0"))
    line = doctor.wheels()
    assert todo in line.todo + line.text or not todo
    assert bool(line.todo) == bool(todo)


@pytest.mark.parametrize("foreign", ["monarch", "torchmonarch"])
def test_package_of_other_project_is_a_finding(monkeypatch: pytest.MonkeyPatch, foreign: str) -> None:
    others = {"monarch": None, "torchmonarch": None}
    monkeypatch.setattr(doctor, "_version", lambda name: "0.0.7" if name == foreign else others.get(name, "99.0"))
    todo = doctor.wheels().todo
    assert todo.startswith(f"{foreign} 0.0.7 is a package of another project: `pip uninstall {foreign}`, then `pip install ./packages/")
    monkeypatch.setattr(doctor, "_version", lambda name: others.get(name, "99.0"))
    assert not doctor.wheels().todo


def test_broken_check_is_a_finding() -> None:
    def broken_one() -> Line:
        raise ValueError("no such thing")

    lines = list(doctor.examine((broken_one, doctor.python)))
    assert [line.subject for line in lines] == ["broken one", "Python"]
    assert "no such thing" in lines[0].text and lines[0].todo
    assert doctor.as_text(lines[0]).startswith("! ") and lines[0].todo in doctor.remedies(lines)[-1]


def test_remedies_stand_at_the_end_once() -> None:
    lines = [
        Line("open files", "limit 100", "run `ulimit -n 65536`"),
        Line("extensions", "a backend is not installed", "pip install 'some-words[far]'", optional=True),
        Line("open files", "limit 100", "run `ulimit -n 65536`"),
        Line("clock", "source tsc"),
    ]
    assert [doctor.as_text(line)[0] for line in lines] == ["!", " ", "!", " "]
    assert [line["finding"] for line in doctor.as_json(lines)] == [True, False, True, False]
    assert doctor.remedies(lines) == [
        "",
        "to do:",
        "  open files     run `ulimit -n 65536`",
        "",
        "only for uses that need it:",
        "  extensions     pip install 'some-words[far]'",
    ]
    assert doctor.remedies([Line("clock", "source tsc")]) == []
