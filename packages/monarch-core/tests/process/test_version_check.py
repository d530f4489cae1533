"""Hosts with another minor version of Python, or another version of Monarch, are refused, by every route to join."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pytest
import worker_processes
from eventually import eventually
from fresh_script import run
from hostile_peers import OURS, PYTHON, RELEASE, VERSION, WELCOME, frame, release, server, speaks, varint
from worker_processes import Workers

import monarch.actor
from monarch._core.errors.table import NOT_RUN
from monarch.actor import Actor, BootstrapCommand, SpawnError, SupervisionError, VersionMismatch, attach_to_workers, endpoint, this_host
from monarch.config import configured

pytestmark = pytest.mark.filterwarnings("ignore:.*without encryption")

# A worker whose interpreter reports that it is Python 3.99.
OTHER_PYTHON = """
import sys
class Version(tuple):
    major, minor = 3, 99
real, sys.version_info = sys.version_info, Version((3, 99, 0, "final", 0))
import monarch._core._native
sys.version_info = real
"""
THEIRS = f"{RELEASE} (protocol {VERSION}, Python 3.99)"
WHY = f"version {THEIRS} at the other end, {OURS} here"


class Nothing(Actor):
    @endpoint
    def look(self) -> None:
        """Does nothing."""


@pytest.fixture
def other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applies to all workers of the test."""
    monkeypatch.setattr(worker_processes, "COMMAND", OTHER_PYTHON + worker_processes.COMMAND)


@pytest.mark.parametrize("kind", ["tls", "insecure", "unix"])
def test_worker_of_other_python_is_refused(kind: str, tmp_path: Path, other_python: None):
    folder = tmp_path / "log"
    with Workers(1, kind, env={**os.environ, "MONARCH_FILE_LOG": "info", "MONARCH_LOG_DIR": str(folder)}) as workers:
        with pytest.raises(VersionMismatch) as failed:
            workers.attach().initialized.get()
        assert failed.value.hosts == {workers.addresses[0]: WHY}
        assert f"1 of 1 hosts did not join: {workers.addresses[0]}: {WHY}" in str(failed.value)
        assert failed.value.hint is not None and "same minor version of Python" in failed.value.hint
        log, text = folder / workers.published[0]["uid"] / "runtime.jsonl", f"version {OURS} at the other end, {THEIRS} here"
        eventually("the worker has written down both too", lambda: text in log.read_text())


def test_relayed_worker_of_other_python_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MONARCH_ATTACH_FAN_OUT", "2")
    with Workers(6, "tls") as workers:
        monkeypatch.setattr(worker_processes, "COMMAND", OTHER_PYTHON + worker_processes.COMMAND)
        other = workers.published.pop(workers.start())["address"]
        # The other host is the third that another worker joins.
        every = [*workers.addresses[:3], other, *workers.addresses[3:]]
        with pytest.raises(VersionMismatch) as failed:
            attach_to_workers(workers=every, **workers.trust()).initialized.get()
        assert failed.value.hosts == {other: WHY}
        with workers.attach() as hosts:
            assert hosts.initialized.get() is True


GATEWAY = """
import json
from monarch.actor import AttachError, attach, attach_to_workers
gateway, workers, trust = json.loads(os.environ["TEST_HOSTS"])
try:
    attach(gateway, **trust)
    attach_to_workers(workers=workers, **trust).initialized.get()
except AttachError as e:
    print(type(e).__name__, *e.hosts.values())
"""


@pytest.mark.parametrize("is_gateway", [True, False])
def test_gateway_compares_versions(is_gateway: bool, monkeypatch: pytest.MonkeyPatch):
    with Workers(1, "tls") as workers:
        monkeypatch.setattr(worker_processes, "COMMAND", OTHER_PYTHON + worker_processes.COMMAND)
        workers.start()
        ours, other = workers.addresses
        gateway, host = (other, ours) if is_gateway else (ours, other)
        done = run(GATEWAY, env={"TEST_HOSTS": json.dumps((gateway, [host], workers.trust()))})
        done.assert_clean()
        assert done.out == f"VersionMismatch {WHY}\n"


def test_proc_of_other_python_does_not_start():
    fake = "import sys, monarch._core._native; sys.version_info = (3, 99, 0, 'final', 0); "
    fake += "from monarch._core.start.command_main import main; main()"
    procs = this_host().spawn_procs(bootstrap_command=BootstrapCommand(sys.executable, args=["-c", fake]))
    with pytest.raises(SpawnError) as failed:
        procs.initialized.get()
    assert f"{sys.executable} is Python 3.99, its spawner runs Python {PYTHON}, and" in str(failed.value)


def test_interpreter_of_other_python_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The interpreter ends before it loads the native module, which another version may be unable to load, and no hint names `os._exit`."""
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    fake = "import sys; sys.version_info = (3, 99, 0, 'final', 0); sys.modules['monarch._core._native'] = None; exec(sys.argv[2])"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{fake}" "$@"\n')
    program.chmod(0o755)
    actor = this_host().with_python_executable(str(program)).spawn_procs().spawn("none", Nothing)
    with pytest.raises(SupervisionError) as failed:
        actor.look.call_one().get()
    text = str(failed.value)
    assert f"is Python 3.99, its spawner runs Python {PYTHON}, and" in text and "Traceback" not in text
    assert text.endswith(f"hint: {NOT_RUN}")


@pytest.mark.parametrize(
    ("preface", "theirs"),
    [
        # The release of a worker without the comparison of Python versions.
        (release(1, "0.1.0"), "0.1.0 (protocol 1)"),
        (release(name="0.1.0"), f"0.1.0 (protocol {VERSION})"),
        (release(name=f"0.2.0+python{PYTHON}"), f"0.2.0 (protocol {VERSION}, Python {PYTHON})"),
        (release(99, f"7.0.0+python{PYTHON}+more"), f"7.0.0 (protocol 99, Python {PYTHON}+more)"),
    ],
)
def test_worker_of_other_release_is_refused(preface: bytes, theirs: str):
    with server(speaks(preface)) as address, configured(mesh_attach_config_timeout="5s"):
        with pytest.raises(VersionMismatch) as failed:
            attach_to_workers(workers=[address], insecure=True).initialized.get()
        assert failed.value.hosts == {address: f"version {theirs} at the other end, {OURS} here"}


def test_other_patch_release_is_logged_once(capfd: pytest.CaptureFixture[str]):
    words = b"".join(varint(len(word)) + word for word in (b"other", b"0.1.9"))
    welcome = b"\0" + varint(7) + words[:6] + varint(1) + words[6:]
    answer = frame(WELCOME, b"") + struct.pack("<I", len(welcome)) + welcome
    with server(speaks(release(name=f"0.1.9+python{PYTHON}"), answer)) as address:
        hosts = attach_to_workers(workers=[address], insecure=True)
        assert hosts.initialized.get() is True
        # Another thread writes the line, while the host is used already.
        text = eventually("the line", lambda: capfd.readouterr().err, lambda err: "patch release" in err)
    lines = [line for line in (text + capfd.readouterr().err).splitlines() if "patch release" in line]
    assert len(lines) == 1 and lines[0].endswith("host other has another patch release: 0.1.9 there, 0.1.0 here")
