"""Addresses of workers: the identity that a worker is given before it starts, and the address that it publishes once it listens."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from monarch.actor import ProcId, Uid

if TYPE_CHECKING:
    from collections.abc import Iterable

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"
_LABEL = "service"
# This character is in no identity: a label has letters, digits, `_` and `-`, a number is base 58.
_SEPARATOR = ","


def new_service_proc_id() -> ProcId:
    """An identity that no other process has."""
    return ProcId(Uid.instance(_LABEL))


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """The address of the worker with this identity that listens at `address`; without one, the address as it is."""
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Iterable[str], proc_ids: Iterable[ProcId] | None) -> list[str]:
    """One address per worker; without identities the addresses as they are.

    `ValueError` if there are not as many identities as addresses.
    """
    if proc_ids is None:
        return list(addresses)
    return [service_proc_addr(address, proc_id) for address, proc_id in zip(addresses, proc_ids, strict=True)]


def serialize_service_proc_ids(proc_ids: Iterable[ProcId]) -> str:
    """The identities as one text, for `MONARCH_SERVICE_PROC_IDS`."""
    return _SEPARATOR.join(map(str, proc_ids))


def deserialize_service_proc_ids(text: str) -> list[ProcId]:
    """Reads what `serialize_service_proc_ids` gave; else `ValueError`."""
    return [ProcId.from_string(part) for part in text.split(_SEPARATOR)] if text else []


def ranked_service_proc_id_from_env(rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """The identity of this process: `MONARCH_SERVICE_PROC_IDS` at the rank in the variable `rank_env`; None where one is not set.

    A scheduler's own variable will do, such as `SLURM_PROCID`. `ValueError` for a rank that has no identity.
    """
    text, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if not text or rank is None:
        return None
    found = deserialize_service_proc_ids(text)
    if not (rank.isascii() and rank.isdecimal() and int(rank) < len(found)):
        raise ValueError(f"{rank_env}={rank}, and {SERVICE_PROC_IDS_ENV} has {len(found)} identities")
    return found[int(rank)]


def published_address(content: str, pid: int | None = None) -> str | None:
    """The address in the JSON that `monarch worker --publish FILE` has written, with the worker's identity.

    None where there is none yet, or where another process than `pid` wrote it.
    """
    try:
        published: Any = json.loads(content)
    except ValueError:
        return None
    if not isinstance(published, dict):
        return None
    fields: dict[str, Any] = published  # pyright: ignore[reportUnknownVariableType]
    address, uid = fields.get("address"), fields.get("uid")
    if not isinstance(address, str) or not address or (pid is not None and fields.get("pid") != pid):
        return None
    # The address includes the identity: another or a later worker at this address is not this one.
    return f"worker<{uid}>@{address}" if isinstance(uid, str) and uid else address
