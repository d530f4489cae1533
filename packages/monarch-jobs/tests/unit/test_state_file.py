"""State files: what is written, and everything that is refused."""

from __future__ import annotations

import json
import os
import pickle
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest
from file_job import FileJob

from monarch.job import BatchJob, JobError, LocalJob, ProcessJob, StateFileError, job_load, job_loads
from monarch.job._files import state_file


def record(**changes: Any) -> dict[str, Any]:
    job = {"arguments": {"hosts": ["a"]}, "script": None}
    return {"schema": 1, "kind": "local", "apply_id": None, "active": False, "job": job} | changes


def put(path: str, content: Any, mode: int = 0o600) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
    Path(path).write_bytes(data)
    os.chmod(path, mode)
    return path


def refused(path: str) -> StateFileError:
    with pytest.raises(StateFileError) as found:
        job_load(path)
    assert str(found.value).startswith(path)
    return found.value


def test_state_file_is_private_and_complete(folder: Path) -> None:
    job = ProcessJob({"a": 2, "b c": 1}, {"A": "1"})
    job.dump("x.json")
    assert stat.S_IMODE(os.stat("x.json").st_mode) == 0o600
    assert json.loads(Path("x.json").read_text()) == {
        "schema": 1,
        "kind": "process",
        "apply_id": None,
        "active": False,
        "job": {"arguments": {"meshes": {"a": 2, "b c": 1}, "env": {"A": "1"}}, "ids": None, "client_script": None},
    }
    assert os.listdir(folder) == ["x.json"]  # no temporary file is left
    copy = job_load("x.json")
    assert copy.plan() == job.plan()
    assert copy.dumps() == job.dumps() == Path("x.json").read_bytes()


def test_attributes_of_a_subclass(folder: Path) -> None:
    job = FileJob("alloc", 3)
    job.extra = {"a": [1, 2.5, None, "x", (True,)]}  # type: ignore[attr-defined]
    job.handle_ = object()  # type: ignore[attr-defined]
    saved = json.loads(job.dumps())
    assert saved["kind"] == "file_job:FileJob"
    assert saved["job"] == {"folder": "alloc", "size": 3, "mesh": "hosts", "extra": {"a": [1, 2.5, None, "x", [True]]}}
    copy = job_loads(job.dumps())
    assert isinstance(copy, FileJob)
    assert (copy.size, copy.active, copy.apply_id) == (3, False, None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "'odd' is of type object"),
        ({1, 2}, "'odd' is of type set"),
        ([1, [b"x"]], r"'odd\[1\]\[0\]' is of type bytes"),
        ({"a": {3: "x"}}, "'odd.a' has the key 3"),
        (float("nan"), "'odd' is nan"),
    ],
)
def test_unserializable_attribute_is_named(value: object, words: str) -> None:
    job = FileJob("alloc")
    job.odd = value  # type: ignore[attr-defined]
    with pytest.raises(JobError, match=words):
        job.dump("x.json")
    assert not os.path.exists("x.json")


def test_missing_files(folder: Path) -> None:
    assert refused("x.json").code == "no_such_job"
    assert refused("x.pkl").code == "no_such_job"
    LocalJob(("a",)).dump("x.json")
    assert isinstance(job_load("x.pkl"), LocalJob)
    assert refused("nowhere/x.json").code == "no_such_job"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["x.json", "x.pkl"])
def test_planted_pickles_are_not_loaded(protocol: int, name: str) -> None:
    class Planted:
        def __reduce__(self) -> Any:
            return (os.mkdir, ("planted",))

    error = refused(put(name, pickle.dumps(Planted(), protocol)))
    assert "is a pickle, and loading one would run whatever code is in it" in str(error)
    assert error.hint is not None and "scheduler" in error.hint
    assert not os.path.exists("planted")


def test_texts_that_are_no_state_files() -> None:
    LocalJob(("a", "b")).dump("x.json")
    whole = Path("x.json").read_bytes()
    for length in range(len(whole) - 2):
        error = refused(put("cut.json", whole[:length]))
        assert "is not JSON" in str(error)
        assert error.line == max(whole[:length].count(b"\n") + 1, 1)
    for bad in (b"\xff\xfe", b"[]", b"{}", b"3", b"null"):
        assert "is not JSON" in str(refused(put("bad.json", bad))) or "'schema' is missing" in str(refused("bad.json"))


def test_another_schema_names_both() -> None:
    error = refused(put("x.json", record(schema=7)))
    assert "is schema 7, this version of monarch-jobs reads schema 1" in str(error)
    assert (error.line, error.field) == (2, "schema")
    for no_schema in ("1", True, 1.0, None, [1]):
        assert refused(put("x.json", record(schema=no_schema))).field == "schema"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ('{"hosts": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested too deeply"),
        ('{"hosts": ' + "[" * 50 + "]" * 50 + "}", "is nested too deeply"),
        ('{"hosts": ["a"], "pid": ' + "9" * 5000 + "}", "has a number that is too large"),
        ('{"hosts": ["a"], "pid": ' + "9" * 30 + "}", "has a number that is too large"),
        ('{"hosts": ["a"], "pid": 1e999}', "has a number that is too large"),
        ('{"hosts": ["a"], "pid": -Infinity}', "has a number that is too large"),
        ('{"hosts": ["a"], "pid": NaN}', "has a number that is too large"),
    ],
)
def test_values_beyond_all_bounds_are_refused(job: str, words: str) -> None:
    text = '{"schema": 1, "kind": "local", "apply_id": null, "active": false, "job": ' + job + "}"
    with open("x.json", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(text)
    assert words in str(refused("x.json"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"apply_id": "../../elsewhere"}, "apply_id"),
        ({"apply_id": 3}, "apply_id"),
        ({"apply_id": str(uuid.uuid4()).upper()}, "apply_id"),
        ({"active": "yes"}, "active"),
        ({"job": []}, "job"),
        ({"more": 1}, "more"),
        ({"kind": 3}, "kind"),
        ({"kind": "nosuch"}, "kind"),
        ({"kind": "os:system"}, "kind"),
        ({"kind": "monarch.job._job.trait:Life"}, "kind"),
        ({"job": {}}, "job"),
        ({"job": {"arguments": {"hosts": [3]}}}, "job"),
        ({"kind": "process", "job": {"arguments": {"meshes": {"a": 0}, "env": {}}}}, "meshes.a"),
    ],
)
def test_error_names_the_malformed_field(changes: dict[str, Any], field: str) -> None:
    error = refused(put("x.json", record(**changes)))
    assert error.field == field, error


def test_file_does_not_decide_imports(folder: Path) -> None:
    (folder / "planted_module.py").write_text("import os\nos.mkdir('planted')\n")
    error = refused(put("x.json", record(kind="planted_module:Job")))
    assert error.hint == "import planted_module before loading the job"
    assert not os.path.exists("planted")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_files_that_others_may_write_are_refused(mode: int) -> None:
    assert f"is writable by others (mode {mode:o})" in str(refused(put("x.json", record(), mode)))
    assert isinstance(job_load(put("y.json", record(), 0o644)), LocalJob)


def test_files_of_other_users_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    put("x.json", record())
    before = Path("x.json").read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"belongs to another user (uid {os.getuid()})" in str(refused("x.json"))
    with pytest.raises(StateFileError, match="belongs to another user"):
        LocalJob(("b",)).dump("x.json")
    assert Path("x.json").read_bytes() == before


def test_symlink_is_followed_unless_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.symlink("deep/real.json", "x.json")
    LocalJob(("a",)).dump("x.json")
    assert os.readlink("x.json") == "deep/real.json"
    assert isinstance(job_load("deep/real.json"), LocalJob)
    LocalJob(("b",)).dump("x.json")
    assert job_load("x.json")._sizes() == {"b": 1}

    real = os.lstat

    def theirs(path: Any) -> os.stat_result:
        found = real(path)
        return os.stat_result([*found[:4], found.st_uid + 1, *found[5:]]) if stat.S_ISLNK(found.st_mode) else found

    monkeypatch.setattr(os, "lstat", theirs)
    assert "and is a symlink" in str(refused("x.json"))
    with pytest.raises(StateFileError, match="and is a symlink"):
        LocalJob(("c",)).dump("x.json")
    assert job_load("deep/real.json")._sizes() == {"b": 1}


def test_places_that_cannot_be_used(folder: Path) -> None:
    os.mkfifo("pipe.json")
    assert "is not a file" in str(refused("pipe.json"))  # and no process waits for a writer
    os.mkdir("directory.json")
    assert "is not a file" in str(refused("directory.json"))
    with pytest.raises(StateFileError, match="is not a file"):
        LocalJob().dump("directory.json")
    put("file", b"")
    assert "cannot be read\n  Not a directory" in str(refused("file/x.json"))
    with pytest.raises(StateFileError, match=r"file/x.json: cannot be written\n  .*(Not a directory|File exists)"):
        LocalJob().dump("file/x.json")
    os.symlink("loop.json", "loop.json")
    assert "Too many levels of symbolic links" in str(refused("loop.json"))


def test_unwritable_directory_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For root every directory is writable; the kernel's other errors are the same for all of them.
    real = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StateFileError, match="x.json: cannot be written\n  Permission denied"):
        LocalJob().dump("x.json")
    assert os.listdir(folder) == []


def test_large_file_is_not_read(folder: Path) -> None:
    with open("x.json", "wb") as f:
        f.truncate(65 << 20)
    os.chmod("x.json", 0o600)
    assert "is no state file: 68157440 bytes" in str(refused("x.json"))


def test_only_the_own_record_is_removed() -> None:
    put("x.json", record(apply_id=str(uuid.uuid4())))
    state_file.remove("x.json", str(uuid.uuid4()))
    assert os.path.exists("x.json")
    state_file.remove("x.json", job_load("x.json").apply_id)
    assert not os.path.exists("x.json")
    state_file.remove("x.json", None)


def test_batch_job_contains_its_job() -> None:
    copy = job_loads(BatchJob(ProcessJob({"a": 2})).dumps())
    assert isinstance(copy, BatchJob)
    assert copy._sizes() == {"a": 2}


def test_file_that_is_no_text_is_refused(folder: Path) -> None:
    assert "it is not UTF-8 text" in str(refused(put("x.json", b'{"schema": "\xff"}')))


def test_missing_file_is_no_such_job(folder: Path) -> None:
    found = refused("missing.json")
    assert found.code == "no_such_job" and "no such job" in str(found)


def test_feature_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(TypeError, match="feature parrot"):
        state_file.encode("local", None, False, {}, [{"name": "parrot", "age": float("nan")}])


def test_failed_write_leaves_the_old_file_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("x.json", b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        state_file.replace("x.json", b"new")
    assert os.listdir(folder) == ["x.json"] and Path("x.json").read_bytes() == b"old"


def test_file_of_another_allocation_is_not_removed(folder: Path) -> None:
    put("x.json", record(apply_id=str(uuid.UUID(int=1)), active=True))
    state_file.remove("x.json", str(uuid.UUID(int=2)))
    assert os.path.exists("x.json")
    state_file.remove("x.json", str(uuid.UUID(int=1)))
    assert not os.path.exists("x.json")
    state_file.remove("x.json", str(uuid.UUID(int=1)))


def test_file_that_cannot_be_removed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("x.json", record(apply_id=str(uuid.UUID(int=1)), active=True))

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StateFileError, match=r"x\.json: cannot be removed"):
        state_file.remove("x.json", str(uuid.UUID(int=1)))
