"""Certificates of a job that outlives their validity."""

from __future__ import annotations

import socket
import ssl

from eventually import eventually
from worker_processes import Workers

from monarch._core.process.current import current_process
from monarch.actor import Actor, HostMesh, endpoint


class Echo(Actor):
    @endpoint
    def echo(self, x: int) -> int:
        return x

    @endpoint
    def call(self, others: Echo, x: int) -> list[int]:
        return list(others.echo.call(x).get().values())


def shown(address: str, host: int) -> bytes:
    """The certificate that a host presents to members of this client's job."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["monarch/1"])
    name = f"h{host:016x}.j{current_process().uid:016x}.monarch.internal"
    place = address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((place[0], int(place[2]))) as plain, context.wrap_socket(plain, server_hostname=name) as encrypted:
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_certificates_of_hosts_are_replaced_during_a_job():
    with Workers(3, "tls") as workers, workers.attach() as hosts:
        assert isinstance(hosts, HostMesh)
        echoes = hosts.spawn_procs().spawn("echo", Echo)
        callers = hosts.spawn_procs().spawn("caller", Echo)
        assert callers.slice(hosts=0).call.call_one(echoes, 1).get() == [1] * 3
        native = current_process().hosts.native
        assert native is not None
        places = list(zip(workers.addresses, hosts.__core__.agents, strict=True))
        before = [shown(*place) for place in places]
        assert before == [shown(*place) for place in places] and len(set(before)) == 3
        native.renew("a test")
        # No event notifies the client, whose streams stay as they are.
        eventually(
            "every agent shows a new certificate",
            lambda: [shown(*place) for place in places],
            lambda now: all(new != old for new, old in zip(now, before, strict=True)),
        )
        answers = [callers.slice(hosts=n).call.call_one(echoes, n) for n in range(3)]
        # New streams present the new certificates, to this client and among the hosts.
        for agent in hosts.__core__.agents:
            native.cut(agent)
        assert [answer.get() for answer in answers] == [[n] * 3 for n in range(3)]
        assert [callers.slice(hosts=n).call.call_one(echoes, 7).get() for n in range(3)] == [[7] * 3] * 3
