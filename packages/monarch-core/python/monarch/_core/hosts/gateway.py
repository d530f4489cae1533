"""The agent through which a client reaches all hosts, if it can dial only that one."""

from __future__ import annotations

from monarch._core.config import config
from monarch._core.config.address import ChannelAddr
from monarch._core.hosts.attachment import agent_uid, described_by, failure_of, job_settings, where
from monarch._core.hosts.connections import native_hosts
from monarch._core.hosts.trust import Given
from monarch._core.process.current import current_process, known_process
from monarch._core.process.process import LocalProcess

# The client that `attach` has started and that has no gateway yet, because none answered: the next call may try another address.
_waiting: int | None = None


def attach(
    addr: str,
    *,
    private_key: bytes | str | None = None,
    ca: bytes | str | None = None,
    secret: bytes | str | None = None,
    insecure: bool = False,
) -> None:
    """Makes this client reach all hosts through the agent at `addr`: one port that can be dialled is enough.

    `this_host()` is still this machine. Waits for the agent, `mesh_attach_config_timeout` at most; `AttachError` if it does not answer or
    refuses. Must be the first use of Monarch and happen once: the same address again changes nothing, another one is a `RuntimeError`,
    as is a client that has started without a gateway. `secret` and the others are as for `attach_to_workers`; a secret is also taken from
    `MONARCH_JOB_SECRET_FILE`.
    """
    _attach(addr, Given(secret, private_key, ca, insecure), is_early=True)


def join_gateway(addr: str, *, secret: bytes | str | None = None, insecure: bool = False) -> None:
    """Like `attach`, but also for a running client that has dialled no host yet: its hosts may still wait for their addresses."""
    _attach(addr, Given(secret, None, None, insecure), is_early=False)


def _attach(addr: str, given: Given, *, is_early: bool) -> None:
    global _waiting
    address = ChannelAddr.parse(addr)
    at = where(address)
    process = known_process()
    if process is not None and _has_this_gateway(process, addr, is_early):
        return
    trust = given.of(address)
    if process is None:
        process = current_process()
        _waiting = process.uid
    hosts = native_hosts(process)
    bound = config.seconds("mesh_attach_config_timeout")
    seconds = 60.0 if bound is None else bound
    cell = hosts.use_gateway(addr, at, agent_uid(address), trust, described_by(process), job_settings(), seconds)
    joined = False
    try:
        cell.wait()
        failure = failure_of(cell, [addr])
        if failure is not None:
            raise failure
        joined = True
        _waiting = None
    finally:
        if not joined:
            hosts.forget_gateway()


def _has_this_gateway(process: LocalProcess, addr: str, is_early: bool) -> bool:
    if not process.is_client or process.execution.world is not None:
        raise RuntimeError("attach is for the client: its actors use its connections")
    gateway = None if process.hosts.native is None else process.hosts.native.route_gateway()
    if gateway is None:
        if not is_early and not any(attachment.has_dialled for attachment in process.hosts.attachments):
            return False
        if process.uid != _waiting or (process.hosts.native is not None and process.hosts.native.hosts()):
            raise RuntimeError(f"attach({addr!r}) comes too late: this client has started already, attach first of all")
        return False
    _, known, lost = gateway
    if known != addr:
        raise RuntimeError(f"attach({addr!r}): this client reaches hosts through {known} already, and that cannot be changed")
    # A lost gateway does not return: the client joins it again as a new one.
    return lost is None
