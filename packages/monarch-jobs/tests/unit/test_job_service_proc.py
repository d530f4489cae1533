"""Identities that workers are given before they start."""

from __future__ import annotations

import pytest

from monarch.actor import ChannelAddr
from monarch.job import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)


def test_addresses_have_the_identity_in_front() -> None:
    a, b = new_service_proc_id(), new_service_proc_id()
    assert a != b
    address = ChannelAddr(service_proc_addr(a, "tcp://node1:22222"))
    assert (f"{address.label}<{address.uid}>", address.port) == (str(a), 22222)
    assert service_proc_addrs([a, b], ["tcp://x:1", "ipc:///y"]) == [f"{a}@tcp://x:1", f"{b}@ipc:///y"]
    with pytest.raises(ValueError, match="shorter|longer"):
        service_proc_addrs([a, b], ["tcp://x:1"])


def test_round_trip_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [new_service_proc_id() for _ in range(3)]
    text = serialize_service_proc_ids(ids)
    assert deserialize_service_proc_ids(text) == ids
    assert deserialize_service_proc_ids("") == []
    monkeypatch.setenv(SERVICE_PROC_IDS_ENV, text)
    monkeypatch.delenv(SERVICE_PROC_RANK_ENV, raising=False)
    assert ranked_service_proc_id_from_env() is None
    monkeypatch.setenv(SERVICE_PROC_RANK_ENV, "2")
    assert ranked_service_proc_id_from_env() == ids[2]
    for bad in ("3", "-1", "x"):
        monkeypatch.setenv(SERVICE_PROC_RANK_ENV, bad)
        with pytest.raises(ValueError, match="3 identities"):
            ranked_service_proc_id_from_env()


@pytest.mark.parametrize("bad", ["a b", "<", ",", "service<0>", "X!"])
def test_what_is_no_identity(bad: str) -> None:
    with pytest.raises(ValueError, match="invalid uid"):
        deserialize_service_proc_ids(bad)
