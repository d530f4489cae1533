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
    address = ChannelAddr(service_proc_addr("tcp://node1:22222", a))
    assert (f"{address.label}<{address.uid}>", address.port) == (str(a), 22222)
    assert service_proc_addr(address="ipc:///y", proc_id=a) == f"{a}@ipc:///y"
    assert service_proc_addrs(["tcp://x:1", "ipc:///y"], [a, b]) == [f"{a}@tcp://x:1", f"{b}@ipc:///y"]
    assert service_proc_addrs(addresses=["tcp://x:1"], proc_ids=[a]) == [f"{a}@tcp://x:1"]
    with pytest.raises(ValueError, match="shorter|longer"):
        service_proc_addrs(["tcp://x:1"], [a, b])


def test_addresses_without_identities_stay_as_they_are() -> None:
    assert service_proc_addr("tcp://x:1", None) == "tcp://x:1"
    assert service_proc_addrs(iter(["tcp://x:1", "ipc:///y"]), None) == ["tcp://x:1", "ipc:///y"]


def test_rank_can_come_from_a_scheduler_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [new_service_proc_id() for _ in range(2)]
    monkeypatch.setenv(SERVICE_PROC_IDS_ENV, serialize_service_proc_ids(ids))
    monkeypatch.setenv(SERVICE_PROC_RANK_ENV, "0")
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert ranked_service_proc_id_from_env() == ids[0]
    assert ranked_service_proc_id_from_env(rank_env="SLURM_PROCID") == ids[1]
    assert ranked_service_proc_id_from_env("PMI_RANK") is None
    monkeypatch.setenv("SLURM_PROCID", "2")
    with pytest.raises(ValueError, match="SLURM_PROCID=2, and MONARCH_SERVICE_PROC_IDS has 2 identities"):
        ranked_service_proc_id_from_env(rank_env="SLURM_PROCID")


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
def test_malformed_identity_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="invalid uid"):
        deserialize_service_proc_ids(bad)
