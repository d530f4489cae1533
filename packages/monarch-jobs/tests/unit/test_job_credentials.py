"""Credentials: where they are, and when they are refused."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

import pytest

from monarch.job import CredentialsError, job_load
from monarch.job._files import contexts, credentials, export
from monarch.job._job import saved
from monarch.job.process import ProcessJob, ProcessSpec


@pytest.fixture
def apply_id() -> str:
    return str(uuid.uuid4())


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_private_and_outside_the_project(folder: Path, tmp_path: Path, apply_id: str) -> None:
    os.umask(os.umask(0))
    secret = credentials.make(apply_id)
    assert len(secret) == 32
    assert credentials.secret(apply_id) == secret
    place = tmp_path / "home" / "jobs" / apply_id
    assert (mode(place), mode(place / "secret"), mode(tmp_path / "home")) == (0o700, 0o600, 0o700)
    assert os.listdir(folder) == []
    credentials.remove(apply_id)
    credentials.remove(apply_id)
    assert not place.exists()
    with pytest.raises(CredentialsError, match=r"secret: is missing(?s:.*)monarch context export"):
        credentials.secret(apply_id)


def test_unsafe_secret_file_is_refused(tmp_path: Path, apply_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials.make(apply_id)
    path = tmp_path / "home" / "jobs" / apply_id / "secret"
    path.chmod(0o640)
    with pytest.raises(CredentialsError, match=r"is open to others \(mode 640\)"):
        credentials.secret(apply_id)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(CredentialsError, match="has 5 bytes, not 32"):
        credentials.secret(apply_id)
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    with pytest.raises(CredentialsError, match="cannot be read"):
        credentials.secret(apply_id)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CredentialsError, match="is not a file"):
        credentials.secret(apply_id)
    path.unlink()
    path.with_name("real").rename(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CredentialsError, match="belongs to another user"):
        credentials.secret(apply_id)


def test_home_writable_by_others_is_refused(tmp_path: Path, apply_id: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    with pytest.raises(CredentialsError, match=r"home: is open to others \(mode 777\)"):
        credentials.make(apply_id)


def test_directories_of_this_machine_are_no_credentials(apply_id: str) -> None:
    secret = credentials.make(apply_id)
    keeper = Path(credentials.directory(apply_id), "keeper")
    keeper.mkdir()
    (keeper / "log").write_text("of a process that runs here\n")
    assert credentials.contents(apply_id) == {"secret": secret}
    Path(credentials.directory(apply_id), "link").symlink_to(keeper)
    with pytest.raises(CredentialsError, match="link: cannot be read"):
        credentials.contents(apply_id)
    credentials.remove(apply_id)
    assert credentials.contents(apply_id) == {}


def test_malformed_identity_names_no_directory() -> None:
    for bad in ("../..", "", "x"):
        with pytest.raises(ValueError, match="badly formed"):
            credentials.remove(bad)


def test_context_is_exported_to_another_machine(tmp_path: Path, apply_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(export._SCRYPT, "n", 2)
    job = ProcessJob({"a": 1})
    job.__core__.apply_id, job.__core__.active = apply_id, True
    job._ids = {"workers": []}
    secret = credentials.make(apply_id)
    contexts.create("mine")
    saved.write(contexts.state_path("mine"), job)
    sealed = export.export("mine", "passphrase")
    assert secret not in sealed

    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "there"))
    there = tmp_path / "other machine"
    there.mkdir()
    monkeypatch.chdir(there)
    assert export.restore(sealed, "passphrase", None) == "mine"
    found = job_load(contexts.state_path("mine"))
    assert isinstance(found, ProcessJob)
    assert (found.apply_id, found._spec) == (apply_id, ProcessSpec(meshes={"a": 1}, env={}))
    assert found._secret() == secret
    # The second call replaces nothing.
    for name in (None, "another"):
        with pytest.raises(RuntimeError):
            export.restore(sealed, "passphrase", name)
    assert contexts.names() == ["mine"]
    assert found._secret() == secret
