"""Reliably connected queue pairs: InfiniBand and RoCE.

Requests are posted through the extended interface, whose calls change the request in place, and the device is notified once per list.
Drivers without it get linked work requests.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from monarch.rdma.verbs.connect_record import RC, QueueRecord
from monarch.rdma.verbs.provider import OpenDevice, WorkRequest
from monarch.rdma.verbs.pyverbs_library import (
    INIT_PD,
    INIT_SEND_OPS,
    OPS_READ,
    OPS_WRITE,
    QPT_RC,
    REMOTE_READ,
    REMOTE_WRITE,
    SEND_SIGNALED,
    WR_RDMA_READ,
    WR_RDMA_WRITE,
    failure,
    module,
)

# 4.096 us * 2^14 = 67 ms until a packet without an answer is sent again, six times: half a second until a rail counts as dead. Soft-RoCE
# treats 7 as endless.
_TIMEOUT, _RETRIES = 14, 6
# 0.64 ms; it has no effect without receives.
_RNR_TIMER = 12
_HOPS = 64
# The most reads that a queue pair serves at a time, and has in flight: enough slices for any delay.
_READS = 16


class RcQueue:
    """A queue pair, in the state INIT until it is connected."""

    def __init__(self, rail: OpenDevice, depth: int) -> None:
        self.depth = depth
        self._rail = rail
        port = rail.port
        qp = module("qp")
        self._sge: Any = module("wr").SGE(0, 0, 0)
        cap = qp.QPCap(max_send_wr=max(depth, 1), max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        common = {"qp_type": QPT_RC, "scq": rail.completions, "rcq": rail.completions, "cap": cap, "pd": rail.domain}
        try:
            extended = qp.QPInitAttrEx(comp_mask=INIT_PD | INIT_SEND_OPS, send_ops_flags=OPS_READ | OPS_WRITE, **common)
            self._pair: Any = qp.QPEx(rail.context, extended)
            self._extended = True
        except module("pyverbs_error").PyverbsError:
            self._pair = qp.QP(rail.context, qp.QPInitAttrEx(comp_mask=INIT_PD, **common))
            self._extended = False
        self._attributes: Any = qp.QPAttr(port_num=port.number)
        self._attributes.qp_access_flags = REMOTE_READ | REMOTE_WRITE
        self._pair.to_init(self._attributes)
        self.record = QueueRecord(
            port.device,
            port.number,
            RC,
            port.gid,
            rail.port_attributes.lid,
            self._pair.qp_num,
            secrets.randbits(24),
            0,
            128 << rail.port_attributes.active_mtu,
            min(rail.attributes.max_qp_rd_atom, _READS),
        )

    def connect(self, remote: QueueRecord) -> None:
        if remote.transport != RC:
            raise OSError(f"{remote.device} does not speak RC, as {self.record.device} does")
        addr, mine, port = module("addr"), self.record, self._rail.port
        route = addr.GlobalRoute(dgid=addr.GID(_text(remote.gid)), sgid_index=port.gid_index, hop_limit=_HOPS)
        attributes = self._attributes
        attributes.ah_attr = addr.AHAttr(port_num=port.number, is_global=1, gr=route, dlid=remote.lid)
        attributes.path_mtu = (min(mine.mtu, remote.mtu) // 128).bit_length() - 1
        attributes.dest_qp_num = remote.number
        attributes.rq_psn = remote.first_packet
        attributes.max_dest_rd_atomic = mine.reads
        attributes.min_rnr_timer = _RNR_TIMER
        attributes.sq_psn = mine.first_packet
        attributes.timeout = _TIMEOUT
        attributes.retry_cnt = attributes.rnr_retry = _RETRIES
        attributes.max_rd_atomic = min(remote.reads, self._rail.attributes.max_qp_init_rd_atom, _READS)
        try:
            self._pair.to_rtr(attributes)
            self._pair.to_rts(attributes)
        except module("pyverbs_error").PyverbsError as e:
            raise failure(e, f"connecting {mine.device} to {remote.device}") from e

    def post(self, requests: Sequence[WorkRequest]) -> bool:
        return self._post_in_place(requests) if self._extended else self._post_linked(requests)

    def _post_in_place(self, requests: Sequence[WorkRequest]) -> bool:
        pair, sge = self._pair, self._sge
        try:
            pair.wr_start()
            for number, write, address, nbytes, key, remote_address, remote_key, signaled in requests:
                pair.wr_id = number
                pair.wr_flags = SEND_SIGNALED if signaled else 0
                if write:
                    pair.wr_rdma_write(remote_key, remote_address)
                else:
                    pair.wr_rdma_read(remote_key, remote_address)
                sge.addr = address
                sge.length = nbytes
                sge.lkey = key
                pair.wr_set_sge(sge)
            pair.wr_complete()
        except module("pyverbs_error").PyverbsError:
            return False
        return True

    def _post_linked(self, requests: Sequence[WorkRequest]) -> bool:
        wr = module("wr")
        linked: list[Any] = []
        for request in requests:
            one = wr.SendWR(
                wr_id=request.number,
                opcode=WR_RDMA_WRITE if request.write else WR_RDMA_READ,
                num_sge=1,
                sg=[wr.SGE(request.address, request.nbytes, request.key)],
                send_flags=SEND_SIGNALED if request.signaled else 0,
            )
            one.set_wr_rdma(request.remote_key, request.remote_address)
            if linked:
                linked[-1].next_wr = one
            linked.append(one)
        try:
            self._pair.post_send(linked[0])
        except module("pyverbs_error").PyverbsError:
            # The number of accepted requests is unknown; the queue is closed in any case.
            return False
        return True

    def close(self) -> None:
        self._rail.closed(self)
        self._pair.close()


def _text(gid: bytes) -> str:
    return ":".join(gid[i : i + 2].hex() for i in range(0, 16, 2))
