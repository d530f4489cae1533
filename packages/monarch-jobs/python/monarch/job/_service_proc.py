"""The identity that a worker is given before it starts, so that its address can be written down: `<proc-id>@url`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monarch.actor import ProcId, Uid

if TYPE_CHECKING:
    from collections.abc import Iterable

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"
_LABEL = "service"
# In no identity: a label has letters, digits, `_` and `-`, a number is base 58.
_SEPARATOR = ","


def new_service_proc_id() -> ProcId:
    """An identity that no other process has."""
    return ProcId(Uid.instance(_LABEL))


def service_proc_addr(proc_id: ProcId, url: str) -> str:
    """The address of the worker with this identity that listens at `url`."""
    return f"{proc_id}@{url}"


def service_proc_addrs(proc_ids: Iterable[ProcId], urls: Iterable[str]) -> list[str]:
    """One address per worker; `ValueError` if there are not as many urls as identities."""
    return [service_proc_addr(proc_id, url) for proc_id, url in zip(proc_ids, urls, strict=True)]


def serialize_service_proc_ids(proc_ids: Iterable[ProcId]) -> str:
    """The identities as one text, for `MONARCH_SERVICE_PROC_IDS`."""
    return _SEPARATOR.join(map(str, proc_ids))


def deserialize_service_proc_ids(text: str) -> list[ProcId]:
    """Reads what `serialize_service_proc_ids` gave; else `ValueError`."""
    return [ProcId.from_string(part) for part in text.split(_SEPARATOR)] if text else []


def ranked_service_proc_id_from_env() -> ProcId | None:
    """The identity of this process by the environment: `MONARCH_SERVICE_PROC_IDS` at `MONARCH_SERVICE_PROC_RANK`; None without them."""
    text, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(SERVICE_PROC_RANK_ENV)
    if not text or rank is None:
        return None
    found = deserialize_service_proc_ids(text)
    if not rank.isdecimal() or int(rank) >= len(found):
        raise ValueError(f"{SERVICE_PROC_RANK_ENV}={rank}, and {SERVICE_PROC_IDS_ENV} has {len(found)} identities")
    return found[int(rank)]
