"""What squeue, scontrol and sacct say about a job, as one record: pure functions over their text.

Only formats that we choose are read (`squeue -h -o FORMAT`, `sacct -P -o FORMAT`, the `Key=Value` line of `scontrol show job -o`): they
have been the same from SLURM 20.11 to 24.11, while the JSON of these commands changed twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

SQUEUE_FORMAT = "%i|%T|%r|%N"
SACCT_FORMAT = "JobID,State,ExitCode,Reason,End"

ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED RECONFIG_FAIL"
    " REVOKED SPECIAL_EXIT TIMEOUT".split()
)
# CONFIGURING: nodes are being booted. STOPPED and SUSPENDED have their nodes and do not run: no clock runs for them either.
PENDING = frozenset("PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SUSPENDED STOPPED POWER_UP_NODE".split())
# COMPLETING: over, but what it ended as is not said yet.
RUNNING = frozenset("RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT UPDATE_DB".split())

_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:.&]*)=")


class Record(NamedTuple):
    """A job as its scheduler has it; texts are empty where it says nothing. `exit_code` is SLURM's `code:signal`."""

    state: str
    reason: str = ""
    nodes: str = ""
    exit_code: str = ""
    ended_at: str = ""
    restarts: int | None = None

    @property
    def phase(self) -> Literal["pending", "running", "ended", "unknown"]:
        if self.state in ENDED:
            return "ended"
        if self.state in PENDING:
            return "pending"
        return "running" if self.state in RUNNING else "unknown"


def from_squeue(text: str, job_id: str) -> Record | None:
    """The job among lines of `SQUEUE_FORMAT`; the components of a heterogeneous job count as one. None where it is not listed."""
    components: list[Record] = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 4 and words[0].split("+")[0] == job_id:
            components.append(Record(state_name(words[1]), _said(words[2]), _said(words[3])))
    return _joined(components)


def from_scontrol(text: str, job_id: str) -> Record | None:
    """The job among lines of `scontrol show job -o`; None where it is not listed."""
    components: list[Record] = []
    for line in text.splitlines():
        pairs = _pairs(line)
        if job_id not in (pairs.get("JobId"), pairs.get("HetJobId"), pairs.get("PackJobId")):
            continue
        state = state_name(pairs.get("JobState", ""))
        ended = _said(pairs.get("EndTime", "")) if state in ENDED else ""
        restarts = int(pairs["Restarts"]) if pairs.get("Restarts", "").isdecimal() else None
        nodes = _said(pairs.get("NodeList", ""))
        components.append(Record(state, _said(pairs.get("Reason", "")), nodes, pairs.get("ExitCode", ""), ended, restarts))
    return _joined(components)


def from_sacct(text: str, job_id: str) -> Record | None:
    """The job among lines of `sacct -X -P -n -o SACCT_FORMAT`; None where it is not listed. Of a requeued job the last line counts."""
    components: dict[str, Record] = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 5 and words[0].split("+")[0] == job_id:
            ended = _said(words[4]) if words[4] != "Unknown" else ""
            components[words[0]] = Record(state_name(words[1]), _said(words[3]), "", words[2], ended)
    return _joined(list(components.values()))


def state_name(text: str) -> str:
    """`CANCELLED by 1000`, `CANCELLED+` and `cancelled` are CANCELLED."""
    words = text.split()
    return words[0].rstrip("+").upper() if words else ""


def _pairs(line: str) -> Mapping[str, str]:
    """`Key=Value` pairs, where values may contain spaces; the first of a key counts."""
    found = list(_PAIR.finditer(line))
    ends = [*(match.start() for match in found), len(line)][1:]
    pairs: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        pairs.setdefault(match[1], line[match.end() : end].strip())
    return pairs


def _joined(components: list[Record]) -> Record | None:
    """One record for all components: ended if any has ended badly or all have, running if all run."""
    if not components:
        return None
    order = {"unknown": 1, "pending": 2, "running": 3, "ended": 4}
    failed = [record for record in components if record.phase == "ended" and record.state != "COMPLETED"]
    leading = failed[0] if failed else min(components, key=lambda record: order[record.phase])
    return leading._replace(nodes=",".join(record.nodes for record in components if record.nodes))


def _said(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A", "Unknown", "None assigned", "") else text
