"""What is in the way of a device, one thing after the other, in a made-up tree; and the names of pyverbs that are used."""

from __future__ import annotations

import importlib
import os
import resource
import sys

import pytest

from monarch.rdma import _doctor
from monarch.rdma._machine import probe
from monarch.rdma._machine.probe import device_remedies, devices
from monarch.rdma.verbs import pyverbs_library, registration
from monarch.rdma.verbs.pyverbs_library import USED
from monarch.rdma.verbs.pyverbs_provider import PyverbsProvider
from monarch.rdma.verbs.usable import Pyverbs


@pytest.fixture
def tree(tmp_path):
    """A device of which nothing works yet."""
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs" / "types").mkdir(parents=True)
    (port / "link_layer").write_text("Ethernet\n")
    (port / "state").write_text("1: DOWN\n")
    (tmp_path / "dev").mkdir()
    return tmp_path


def reason(tree):
    ((report, remedy),) = device_remedies(Pyverbs(str(tree), str(tree / "dev")))
    assert report.name == "verbs:mlx5_0" and report.rails == 1 and not report.usable
    assert devices(Pyverbs(str(tree), str(tree / "dev"))) == [report]
    return report.reason, remedy


def test_one_thing_after_the_other(tree, monkeypatch):
    port = tree / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    assert reason(tree)[0] == "port 1 is DOWN"
    (port / "state").write_text("4: ACTIVE\n")
    assert reason(tree)[0] == "no port has an address (GID)"
    (port / "gids" / "0").write_text("0000:0000:0000:0000:0000:ffff:0a63:0001\n")
    (port / "gid_attrs" / "types" / "0").write_text("RoCE v2\n")
    assert reason(tree)[0] == f"{tree}/dev/uverbs* is missing"
    verbs = tree / "class" / "infiniband_verbs" / "uverbs3"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text("mlx5_0\n")
    assert reason(tree)[0] == f"{tree}/dev/uverbs3 is missing"
    (tree / "dev" / "uverbs3").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert reason(tree)[0].endswith("uverbs3 may not be opened by this user")
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyverbs", None)
        for name in [name for name in sys.modules if name.startswith("pyverbs.")]:
            patch.delitem(sys.modules, name)
        what, remedy = reason(tree)
        assert what.startswith("pyverbs: ") and remedy.startswith("install Debian's and Ubuntu's python3-pyverbs, or `pip install")
        from monarch.rdma.verbs.devices import ports

        with pytest.raises(OSError, match="pyverbs: .*; install"):
            PyverbsProvider().open(ports(str(tree))[0])
    monkeypatch.setattr(pyverbs_library, "problem", lambda: "")
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda which: (64 << 10, 64 << 10))
        patch.setattr(registration, "_unlimited", lambda file: False)
        what, remedy = reason(tree)
        assert what.startswith("51 KiB may be registered") and "ulimit -l" in remedy
    monkeypatch.setattr(registration, "_unlimited", lambda file: True)
    ((report, remedy),) = device_remedies(Pyverbs(str(tree), str(tree / "dev")))
    assert (report.usable, report.reason, remedy) == (True, "", "")


def test_devices_that_are_not_to_be_used(tree):
    from monarch.config import configured

    with configured(rdma_disable_ibverbs=True):
        assert reason(tree) == ("`rdma_disable_ibverbs` is set", "")


def test_no_device(tmp_path):
    (report,) = devices(Pyverbs(str(tmp_path)))
    assert report == ("verbs", "verbs", 0, None, False, "no RDMA device") and not device_remedies(Pyverbs(str(tmp_path)))


def test_doctor_has_a_row_with_a_remedy(tree, monkeypatch):
    rows = device_remedies(Pyverbs(str(tree), str(tree / "dev")))
    monkeypatch.setattr(_doctor, "device_remedies", lambda *library: rows)
    monkeypatch.setattr(probe, "device_remedies", lambda *library: rows)
    found = {subject: (text, remedy) for subject, text, remedy in _doctor.lines()}
    assert found["rdma verbs:mlx5_0"] == ("port 1 is DOWN", rows[0][1])
    assert "verbs:mlx5_0" in found["rdma"][0]


def test_every_name_used_of_pyverbs_exists():
    if pyverbs_library.problem():
        pytest.skip(pyverbs_library.problem())
    for module, classes in USED.items():
        loaded = importlib.import_module(module)
        for name, members in classes.items():
            made = getattr(loaded, name)
            assert not [member for member in members if not hasattr(made, member)], f"{module}.{name}"
