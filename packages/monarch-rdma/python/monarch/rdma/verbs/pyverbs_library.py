"""What is used of pyverbs, which comes from the extra `verbs` or from the distribution, in versions 44 and later.

Its constants moved from module to module over the years; their values are those of the kernel's interface and of libibverbs, and stay.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# enum ibv_access_flags, ibv_qp_type, ibv_qp_init_attr_mask, ibv_qp_create_send_ops_flags,
# ibv_send_flags, ibv_wr_opcode
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
QPT_RC, QPT_DRIVER = 2, 0xFF
INIT_PD, INIT_SEND_OPS = 1, 1 << 6
OPS_WRITE, OPS_READ = 1 << 0, 1 << 4
SEND_SIGNALED = 2
WR_RDMA_WRITE, WR_RDMA_READ = 0, 4

# Every used name, by module and class: versions 44 and 59 have them all. A test compares the table with the installed library.
USED: dict[str, dict[str, tuple[str, ...]]] = {
    "pyverbs.addr": {"AH": ("close",), "AHAttr": (), "GID": (), "GlobalRoute": ()},
    "pyverbs.cq": {"CQ": ("ack_events", "close", "poll", "req_notify"), "CompChannel": ("close", "get_cq_event")},
    "pyverbs.device": {"Context": ("close", "query_device", "query_port"), "get_device_list": ()},
    "pyverbs.mr": {"DmaBufMR": ("close", "lkey", "rkey"), "MR": ("close", "lkey", "rkey")},
    "pyverbs.pd": {"PD": ("close",)},
    "pyverbs.providers.efa.efadv": {"EfaContext": ("query_efa_device",), "EfaQPInitAttr": (), "SRDQPEx": ("wr_set_ud_addr",)},
    "pyverbs.pyverbs_error": {"PyverbsError": (), "PyverbsRDMAError": ("error_code",)},
    "pyverbs.qp": {
        "QP": ("close", "post_send", "qp_num", "to_init", "to_rtr", "to_rts"),
        "QPAttr": (
            "ah_attr",
            "dest_qp_num",
            "max_dest_rd_atomic",
            "max_rd_atomic",
            "min_rnr_timer",
            "path_mtu",
            "port_num",
            "qkey",
            "qp_access_flags",
            "qp_state",
            "retry_cnt",
            "rnr_retry",
            "rq_psn",
            "sq_psn",
            "timeout",
        ),
        "QPCap": (),
        "QPEx": ("wr_abort", "wr_complete", "wr_flags", "wr_id", "wr_rdma_read", "wr_rdma_write", "wr_set_sge", "wr_start"),
        "QPInitAttrEx": (),
    },
    "pyverbs.wr": {"SGE": ("addr", "length", "lkey"), "SendWR": ("next_wr", "set_wr_rdma")},
}
INSTALL = (
    "Debian's and Ubuntu's python3-pyverbs, or `pip install 'monarch-rdma[verbs]'`, which needs a compiler and the headers of rdma-core"
)


def module(name: str) -> Any:
    """A module of pyverbs; `ImportError` where it is not installed, or does not fit the libibverbs that is."""
    return import_module(f"pyverbs.{name}")


def problem() -> str:
    """Why pyverbs cannot be used; empty if it can."""
    try:
        for name in USED:
            if "efa" not in name:
                import_module(name)
    except ImportError as e:
        return f"pyverbs: {e}; install {INSTALL}"
    return ""


def failure(error: Any, doing: str) -> OSError:
    """An exception of pyverbs as one that others know: the number is in `error_code`, or in the text only."""
    code = getattr(error, "error_code", 0) or 0
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return OSError(code, f"{doing}: {text}")
