"""EFA's scalable reliable datagrams: one queue pair for a device and all its peers, an address handle for each of them.

Requests complete in any order, so each is signaled, and none stands for others. The device is queried for its operations: the first
generation reads only, some do neither. A request to a peer that is gone fails by itself after the device's own retries, which is why a
queue pair that others use as well need not be closed for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from monarch.rdma.verbs.connect_record import SRD, QueueRecord
from monarch.rdma.verbs.provider import OpenDevice, WorkRequest
from monarch.rdma.verbs.pyverbs_library import INIT_PD, INIT_SEND_OPS, OPS_READ, OPS_WRITE, QPT_DRIVER, SEND_SIGNALED, failure, module

# EFADV_DEVICE_ATTR_CAPS_RDMA_READ, ..._WRITE
_CAN_READ, _CAN_WRITE = 1 << 0, 1 << 3
_DEPTH = 512


def open_efa(device: str) -> Any:
    """The context of an EFA device."""
    return module("providers.efa.efadv").EfaContext(name=device)


def supported(context: Any) -> str:
    """The ability that a device lacks; empty if it reads and writes memory of other processes."""
    capabilities = context.query_efa_device().device_caps
    lacking = [name for name, bit in (("read", _CAN_READ), ("write", _CAN_WRITE)) if not capabilities & bit]
    return f"the device does not {' nor '.join(lacking)} memory of others" if lacking else ""


class SrdEndpoint:
    """The queue pair of a device."""

    def __init__(self, rail: OpenDevice) -> None:
        efadv, qp = module("providers.efa.efadv"), module("qp")
        cap = qp.QPCap(max_send_wr=_DEPTH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = qp.QPInitAttrEx(
            qp_type=QPT_DRIVER,
            scq=rail.completions,
            rcq=rail.completions,
            cap=cap,
            pd=rail.domain,
            comp_mask=INIT_PD | INIT_SEND_OPS,
            send_ops_flags=OPS_READ | OPS_WRITE,
        )
        self.pair: Any = efadv.SRDQPEx(rail.context, init, efadv.EfaQPInitAttr())
        self.sge: Any = module("wr").SGE(0, 0, 0)
        attributes: Any = qp.QPAttr(port_num=rail.port.number)
        attributes.qkey = self.queue_key = secrets.randbits(31)
        self.first_packet = attributes.sq_psn = secrets.randbits(24)
        self.pair.to_init(attributes)
        self.pair.to_rtr(attributes)
        self.pair.to_rts(attributes)

    def close(self) -> None:
        self.pair.close()


class SrdQueue:
    """What leads to one peer."""

    def __init__(self, rail: OpenDevice, endpoint: SrdEndpoint, depth: int) -> None:
        self.depth = depth
        self._rail = rail
        self._endpoint = endpoint
        self._handle: Any = None
        self._peer: tuple[int, int] = (0, 0)
        port = rail.port
        number = endpoint.pair.qp_num
        mtu = 128 << rail.port_attributes.active_mtu
        self.record = QueueRecord(port.device, port.number, SRD, port.gid, 0, number, endpoint.first_packet, endpoint.queue_key, mtu, 0)

    def connect(self, remote: QueueRecord) -> None:
        if remote.transport != SRD:
            raise OSError(f"{remote.device} does not speak SRD, as {self.record.device} does")
        addr, port = module("addr"), self._rail.port
        gid = ":".join(remote.gid[i : i + 2].hex() for i in range(0, 16, 2))
        route = addr.GlobalRoute(dgid=addr.GID(gid), sgid_index=port.gid_index)
        try:
            self._handle = addr.AH(self._rail.domain, attr=addr.AHAttr(port_num=port.number, is_global=1, gr=route))
        except module("pyverbs_error").PyverbsError as e:
            raise failure(e, f"an address handle of {self.record.device} for {remote.device}") from e
        self._peer = remote.number, remote.queue_key

    def post(self, requests: Sequence[WorkRequest]) -> bool:
        pair, sge, handle = self._endpoint.pair, self._endpoint.sge, self._handle
        number, key = self._peer
        try:
            pair.wr_start()
            for request in requests:
                pair.wr_id = request.number
                pair.wr_flags = SEND_SIGNALED
                if request.write:
                    pair.wr_rdma_write(request.remote_key, request.remote_address)
                else:
                    pair.wr_rdma_read(request.remote_key, request.remote_address)
                sge.addr, sge.length, sge.lkey = request.address, request.nbytes, request.key
                pair.wr_set_sge(sge)
                pair.wr_set_ud_addr(handle, number, key)
            pair.wr_complete()
        except module("pyverbs_error").PyverbsError:
            return False
        return True

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._rail.closed(self)
