"""The settings of this wheel, by its entry point of the group `monarch.settings`."""

from __future__ import annotations

from monarch.extension import Setting

_UNUSED = "No effect; type-checked for programs written for 0.7."

SETTINGS = (
    Setting("rdma_allow_tcp_fallback", "bool", True, "False: a host without a verbs device makes construction fail."),
    Setting("rdma_cq_poller_per_device", "bool", True, _UNUSED),
    Setting("rdma_disable_ibverbs", "bool", False, "Never use verbs."),
    Setting("rdma_host_odp", "bool", False, _UNUSED),
    Setting("rdma_ibverbs_target", "str", "", "`cpu:<numa>`, `gpu:<ordinal>` or `nic:<name>`; empty: automatic."),
    Setting("rdma_max_chunk_size_mb", "int", 64, "Upper bound of a slice.", unit="MiB"),
    Setting("rdma_max_nics_per_buffer", "int", None, "Rails per buffer; `None`: all of the NUMA node.", nonzero=True, nullable=True),
    Setting("rdma_min_stripe_size_kb", "int", 512, _UNUSED, unit="KiB", nonzero=True),
    Setting("rdma_peer_device_affinity", "str", "", "`any`, `match_name` or `groups:a,b|c,d` (disjoint); empty: `any`."),
    Setting("rdma_qp_init_timeout", "duration", "30s", "Bound for opening a peer."),
    Setting("rdma_qps_per_cq", "int", 64, _UNUSED, nonzero=True),
    Setting("rdma_qps_per_peer", "int", 4, _UNUSED, nonzero=True),
    Setting("rdma_runtime_worker_threads", "int", 4, _UNUSED),
    Setting("rdma_tcp_fallback_parallelism", "int", 1, "Streams per peer: 1: chosen from cores and measured gain; more: that many."),
    Setting("rdma_cq_busy_poll_window", "duration", None, "Spin before the completion event is armed; `None`: 50 us.", nullable=True),
)
