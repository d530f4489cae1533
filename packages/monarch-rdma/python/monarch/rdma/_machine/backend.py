"""What carries bytes between hosts."""

from __future__ import annotations

from warnings import warn

from monarch import extension
from monarch.rdma.errors import RdmaInitError


def get_rdma_backend() -> str:
    """`ibverbs`, `tcp` or `none`: what carries bytes between hosts, as far as is known without opening a device."""
    if is_ibverbs_available():
        return "ibverbs"
    return "tcp" if extension.setting("rdma_allow_tcp_fallback") else "none"


def is_ibverbs_available() -> bool:
    """Whether this process uses RDMA devices: there is one, nothing known is in its way, and the settings permit it."""
    # The import takes 10 ms, which a process that only reads memory of others can save.
    from monarch.rdma.verbs.usable import usable

    return usable()


def is_rdma_available() -> bool:
    """The same as `is_ibverbs_available`, which replaces it."""
    warn("is_rdma_available is deprecated: use is_ibverbs_available", DeprecationWarning, stacklevel=2)
    return is_ibverbs_available()


def check_backend() -> str:
    """The backend for a buffer that is being made; `RdmaInitError` where the settings leave none."""
    _check_target(extension.setting("rdma_ibverbs_target"))
    _check_affinity(extension.setting("rdma_peer_device_affinity"))
    backend = get_rdma_backend()
    if backend != "ibverbs" and not extension.setting("rdma_allow_tcp_fallback"):
        from monarch.rdma._machine.probe import devices  # 10 ms, for the text of an error

        tried = "\n".join(f"{found.name}: {found.reason}" for found in devices())
        raise RdmaInitError(
            "no device can carry bytes between hosts, and `rdma_allow_tcp_fallback` is False",
            cause=tried or "no RDMA device in /sys/class/infiniband",
            hint="leave `rdma_allow_tcp_fallback` at True",
        )
    return backend


def _check_target(text: str) -> None:
    kind, colon, which = text.partition(":")
    if text and not (colon and (kind == "nic" and which or kind in ("cpu", "gpu") and which.isdecimal())):
        raise RdmaInitError(f"`rdma_ibverbs_target` is '{text}'", hint="`cpu:<numa>`, `gpu:<ordinal>`, `nic:<name>`, or nothing")


def _check_affinity(text: str) -> None:
    if text in ("", "any", "match_name"):
        return
    kind, colon, groups = text.partition(":")
    names = [name for group in groups.split("|") for name in group.split(",")]
    if kind != "groups" or not colon or not all(names) or len(set(names)) < len(names):
        raise RdmaInitError(f"`rdma_peer_device_affinity` is '{text}'", hint="`any`, `match_name`, or disjoint `groups:a,b|c,d`")
