"""The public names, and what importing them loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import monarch.rdma
from monarch.actor import MonarchError
from monarch.config import configured

# The first eight are those of torchmonarch 0.7.
CONTRACT = """
RDMABuffer RDMAAction get_rdma_backend is_ibverbs_available is_rdma_available RDMAReadTransferWarning RDMAWriteTransferWarning
RDMATcpFallbackWarning RDMABufferSet RDMAPlan allocate probe DeviceReport RDMAError RdmaInitError RDMATimeoutError RDMAReleasedError
RDMAPeerLostError RDMAAccessError RDMATransferError RDMAUnsupportedError
"""


def test_names():
    assert sorted(monarch.rdma.__all__) == sorted(CONTRACT.split()) == dir(monarch.rdma)
    for name in monarch.rdma.__all__:
        assert getattr(monarch.rdma, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        monarch.rdma.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("RdmaInitError", RuntimeError),
        ("RDMATimeoutError", TimeoutError),
        ("RDMAReleasedError", LookupError),
        ("RDMAPeerLostError", ConnectionError),
        ("RDMAAccessError", PermissionError),
        ("RDMATransferError", RuntimeError),
        ("RDMAUnsupportedError", NotImplementedError),
    ],
)
def test_errors(name, also):
    import pickle

    error = getattr(monarch.rdma, name)("what", cause="a\nb", hint="do this")
    assert isinstance(error, (also, monarch.rdma.RDMAError)) and isinstance(error, MonarchError) and isinstance(error, RuntimeError)
    assert isinstance(error, also)
    assert str(error) == "what\n  a\n  b\nhint: do this" and error.hint == "do this" and error.code.startswith("rdma_")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.hint == "do this"


def test_nothing_heavy_is_loaded():
    code = """
import sys
from monarch.rdma import RDMABuffer
with RDMABuffer(memoryview(bytearray(8))) as buffer:
    buffer.read_into(memoryview(bytearray(8))).get()
assert not {"torch", "numpy", "ctypes", "asyncio", "click"} & set(sys.modules), sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_backend(monkeypatch):
    assert monarch.rdma.get_rdma_backend() == "tcp"
    with configured(rdma_allow_tcp_fallback=False):
        assert monarch.rdma.get_rdma_backend() == "none"
    assert monarch.rdma.is_ibverbs_available() is False
    with pytest.warns(DeprecationWarning, match="is_ibverbs_available"):
        assert monarch.rdma.is_rdma_available() is False


@pytest.mark.parametrize(
    "settings",
    [
        {"rdma_allow_tcp_fallback": False},
        {"rdma_ibverbs_target": "cpu"},
        {"rdma_ibverbs_target": "gpu:x"},
        {"rdma_ibverbs_target": "nic:"},
        {"rdma_peer_device_affinity": "groups:a,b|b"},
        {"rdma_peer_device_affinity": "some"},
    ],
)
def test_settings_that_leave_nothing(settings):
    from monarch.config import configured

    with configured(**settings), pytest.raises(monarch.rdma.RdmaInitError, match=next(iter(settings))):
        monarch.rdma.RDMABuffer(memoryview(bytearray(1)))
    with configured(rdma_ibverbs_target="nic:mlx5_0", rdma_peer_device_affinity="groups:a,b|c"):
        monarch.rdma.RDMABuffer(memoryview(bytearray(1)))
