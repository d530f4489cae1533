"""What SLURM's answers about a job and its nodes mean for the job: a pure function over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from monarch.job._job.launcher import Host, Trouble
from monarch.job.slurm.output import COMPLETING, JobRecord, NodeState

# The deed of SLURM by the state of the job.
_ENDS = {
    "BOOT_FAIL": "SLURM has ended job {}, since a node could not be booted",
    "CANCELLED": "job {} of SLURM was cancelled",
    "DEADLINE": "SLURM has ended job {} at its deadline",
    "NODE_FAIL": "SLURM has ended job {}, since it lost a node",
    "OUT_OF_MEMORY": "SLURM has ended job {} for memory",
    "PREEMPTED": "SLURM has preempted job {}",
    "TIMEOUT": "SLURM has ended job {} at its time limit",
    COMPLETING: "SLURM is ending job {}",
}


def troubles(
    job_id: str,
    record: JobRecord,
    places: Mapping[str, Sequence[int]],
    nodes: Sequence[str],
    states: Mapping[str, NodeState],
    held: Collection[str],
) -> list[Trouble]:
    """`places` has the ranks of each mesh, `nodes` the node of each rank, `states` what is known of them, `held` those that the job has."""
    show = f"scontrol show job {job_id}"
    # Nodes that SLURM has taken out of service by itself or by its administrator, and which have a part in the end of the job.
    bad = [f"node {name} is {_words(states[name])}" for name in dict.fromkeys(nodes) if name in states and _is_bad(states[name])]
    why = "".join(f"; {one}" for one in bad[:4])
    if record.phase == "ended" or record.state == COMPLETING:
        code = f", exit code {record.exit_code}" if record.exit_code not in ("", "0:0") else ""
        words = _ENDS.get(record.state, "job {} of SLURM has ended").format(job_id)
        return [Trouble("ended", f"{words} ({_state(record)}{code}){why}", source="scontrol show job", command=show)]
    if record.phase == "pending" and record.restarts:
        text = f"SLURM has put job {job_id} back into the queue ({_state(record)}){why}"
        return [Trouble("ended", text, source="scontrol show job", command=show)]
    if record.phase == "pending":
        return [Trouble("queued", f"job {job_id} of SLURM waits in the queue ({_state(record)})", source="squeue", command=show)]
    found: list[Trouble] = []
    for name in dict.fromkeys(nodes):
        node = states.get(name)
        words = f"node {name} is {_words(node)}" if node is not None and _is_bad(node) else ""
        hosts = tuple(
            Host(mesh, index) for mesh, ranks in places.items() for index, rank in enumerate(ranks) if name in nodes[rank : rank + 1]
        )
        if hosts and held and name not in held:
            # A job with `--no-kill` goes on without a node that is gone.
            text = f"SLURM has taken node {name} from job {job_id}{f'; {words}' if words else ''}"
            found.append(Trouble("ended", text, hosts, "squeue", f"scontrol show node {name}"))
        elif hosts and words:
            found.append(Trouble("leaving", words, hosts, "sinfo", f"scontrol show node {name}"))
    return found


def _is_bad(node: NodeState) -> bool:
    return node.state.startswith("drain") or not node.is_alive


def _words(node: NodeState) -> str:
    state = f"{node.state.rstrip('*')} and does not answer" if node.state.endswith("*") else node.state
    return f"{state}: {node.reason!r}" if node.reason else state


def _state(record: JobRecord) -> str:
    return f"{record.state}: {record.reason}" if record.reason else record.state
