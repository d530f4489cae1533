"""What squeue, scontrol, sacct and sinfo print about jobs and nodes: pure functions over their text.

Only formats that we choose are read (`squeue -h -o FORMAT`, `sacct -P -o FORMAT`, the `Key=Value` line of `scontrol show job -o`): they
have been the same from SLURM 20.11 to 24.11, while the JSON of these commands changed twice. The exception is the error for a job that
SLURM has forgotten: commands exit with 1 for every error, so only their text is different (`is_unknown_job`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

SQUEUE_FORMAT = "%i|%T|%r|%N"
# For `with_comment` and `node_states`.
COMMENTS_FORMAT = "%A|%k"
NODES_FORMAT = "%N|%T|%E"
SACCT_FORMAT = "JobID,State,ExitCode,Reason,End"

ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED RECONFIG_FAIL"
    " REVOKED SPECIAL_EXIT TIMEOUT".split()
)
# CONFIGURING: nodes are being booted. STOPPED and SUSPENDED jobs have their nodes and do not run: no limit runs for them either.
PENDING = frozenset("PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SUSPENDED STOPPED POWER_UP_NODE".split())
# The job is over, but its final state is unknown yet.
COMPLETING = "COMPLETING"
RUNNING = frozenset([COMPLETING, *"RUNNING RESIZING SIGNALING STAGE_OUT UPDATE_DB".split()])

_UNKNOWN_JOB = re.compile(r"invalid job id|job\(s\) not found|does not exist|no such job", re.IGNORECASE)
# States of a node on which nothing can be started; `*` means that it does not answer.
_NODE_GONE = re.compile(r"\*|down|fail|error|power|reboot|future|inval|unknown", re.IGNORECASE)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:.&]*)=")


class JobRecord(NamedTuple):
    """A job as its scheduler has it; texts are empty where it reports nothing. `exit_code` is SLURM's `code:signal`."""

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


def from_squeue(text: str, job_id: str) -> JobRecord | None:
    """The job among lines of `SQUEUE_FORMAT`; the components of a heterogeneous job count as one. None where it is not listed."""
    components: list[JobRecord] = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 4 and words[0].split("+")[0] == job_id:
            components.append(JobRecord(state_name(words[1]), _known_text(words[2]), _known_text(words[3])))
    return _joined(components)


def from_scontrol(text: str, job_id: str) -> JobRecord | None:
    """The job among lines of `scontrol show job -o`; None where it is not listed."""
    components: list[JobRecord] = []
    for line in text.splitlines():
        pairs = _pairs(line)
        if job_id not in (pairs.get("JobId"), pairs.get("HetJobId"), pairs.get("PackJobId")):
            continue
        state = state_name(pairs.get("JobState", ""))
        ended = _known_text(pairs.get("EndTime", "")) if state in ENDED else ""
        restarts = int(pairs["Restarts"]) if pairs.get("Restarts", "").isdecimal() else None
        nodes = _known_text(pairs.get("NodeList", ""))
        components.append(JobRecord(state, _known_text(pairs.get("Reason", "")), nodes, pairs.get("ExitCode", ""), ended, restarts))
    return _joined(components)


def from_sacct(text: str, job_id: str) -> JobRecord | None:
    """The job among lines of `sacct -X -P -n -o SACCT_FORMAT`; None where it is not listed. The last line of a requeued job counts."""
    components: dict[str, JobRecord] = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 5 and words[0].split("+")[0] == job_id:
            ended = _known_text(words[4]) if words[4] != "Unknown" else ""
            components[words[0]] = JobRecord(state_name(words[1]), _known_text(words[3]), "", words[2], ended)
    return _joined(list(components.values()))


def is_unknown_job(error: str) -> bool:
    """Whether the error of a command is that SLURM knows no such job: it has ended long ago."""
    return _UNKNOWN_JOB.search(error) is not None


def with_comment(text: str, comment: str) -> list[str]:
    """The numbers of the jobs with this comment, among lines of `COMMENTS_FORMAT`."""
    rows = (line.partition("|") for line in text.splitlines())
    return [number for number, _, found in rows if found.strip() == comment]


class NodeState(NamedTuple):
    """A node as the controller has it. `reason` is that of the administrator or of SLURM, empty without one."""

    state: str
    reason: str = ""

    @property
    def is_alive(self) -> bool:
        """Does it answer the controller, as far as that knows?"""
        return _NODE_GONE.search(self.state) is None


def node_states(text: str) -> dict[str, NodeState]:
    """The nodes among lines of `NODES_FORMAT`."""
    rows = (line.split("|", 2) for line in text.splitlines())
    return {row[0]: NodeState(row[1], "" if row[2].strip() == "none" else row[2].strip()) for row in rows if len(row) == 3}


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


def _joined(components: list[JobRecord]) -> JobRecord | None:
    """One record for all components: ended if any has ended badly or all have, running if all run."""
    if not components:
        return None
    order = {"unknown": 1, "pending": 2, "running": 3, "ended": 4}
    failed = [record for record in components if record.phase == "ended" and record.state != "COMPLETED"]
    leading = failed[0] if failed else min(components, key=lambda record: order[record.phase])
    return leading._replace(nodes=",".join(record.nodes for record in components if record.nodes))


def _known_text(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A", "Unknown", "None assigned", "") else text


# SLURM's compact lists of host names: `n[0-2,7],gpu[01-02]-ib` is n0, n1, n2, n7, gpu01-ib, gpu02-ib.
HOSTS_LIMIT = 100_000  # hosts of one list: a bound for garbage such as n[0-999999999], above any cluster

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """The names in order; `ValueError` for what is no host list. Several brackets in one name multiply, the last one runs fastest."""
    names: list[str] = []
    for part in _parts(text):
        for name in _expanded(part):
            names.append(name)
            if len(names) > HOSTS_LIMIT:
                raise ValueError(f"more than {HOSTS_LIMIT} hosts in {text[:80]!r}")
    return names


def _parts(text: str) -> Iterator[str]:
    """Splits at the commas that are outside of brackets."""
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield _word(text[start:position], text)
            start = position + 1
        if not 0 <= depth <= 1:
            raise ValueError(f"brackets that do not match in the host list {text[:80]!r}")
    if depth:
        raise ValueError(f"brackets that do not match in the host list {text[:80]!r}")
    if text:
        yield _word(text[start:], text)


def _word(part: str, text: str) -> str:
    if not part or not re.fullmatch(r"[\w.\-\[\],]+", part):
        raise ValueError(f"{part[:80]!r} in {text[:80]!r} is no host name")
    return part


def _expanded(part: str) -> Iterator[str]:
    found = _BRACKET.search(part)
    if found is None:
        yield part
        return
    for number in _numbers(found[1], part):
        for rest in _expanded(part[found.end() :]):
            yield part[: found.start()] + number + rest


def _numbers(text: str, part: str) -> Iterator[str]:
    for word in text.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError(f"{word!r} in {part[:80]!r} is no number and no range")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"the range {word!r} in {part[:80]!r} runs backwards")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


# For a job that shares nodes: cpus and memory in proportion to its GPUs, from what sinfo prints about the partition.
SINFO_FORMAT = "%c|%m|%G"


class NodeSize(NamedTuple):
    """What every node of a partition has at least."""

    cpus: int
    memory_mb: int
    gpus: int


def from_sinfo(text: str) -> NodeSize | None:
    """The smallest node among lines of `SINFO_FORMAT`; None where no line is one. `+` after a number means "at least"."""
    sizes: list[NodeSize] = []
    for line in text.splitlines():
        words = line.strip().split("|")
        numbers = [re.match(r"\d+", word) for word in words[:2]]
        if len(words) == 3 and numbers[0] and numbers[1]:
            sizes.append(NodeSize(int(numbers[0][0]), int(numbers[1][0]), _gpus(words[2])))
    return NodeSize(*(min(size[index] for size in sizes) for index in range(3))) if sizes else None


def _gpus(gres: str) -> int:
    """GPUs in `gpu:a100:8(S:0-1),nvme:2`, of any vendor and model."""
    words = re.sub(r"\([^)]*\)", "", gres).split(",")
    return sum(int(found[1]) for word in words if (found := re.fullmatch(r"gpu(?::[^:]+)?:(\d+)", word.strip())))


class Share(NamedTuple):
    """What sbatch is asked for, for each node."""

    cpus_per_task: int
    mem: str
    gpus_per_node: int | None


def share(size: NodeSize, tasks_per_node: int, gpus_per_task: int) -> Share:
    """The part of a node for `tasks_per_node` tasks; `ValueError` where a node has not that many GPUs or cpus.

    With GPUs the part is that of the GPUs. Without, each task gets one cpu, and memory in proportion.
    """
    gpus = tasks_per_node * gpus_per_task
    if gpus > size.gpus or tasks_per_node > size.cpus:
        raise ValueError(
            f"{tasks_per_node} tasks with {gpus_per_task} GPUs each do not fit: nodes have {size.cpus} cpus and {size.gpus} GPUs"
        )
    cpus = max(1, size.cpus * gpus // size.gpus // tasks_per_node) if gpus else 1
    memory = size.memory_mb * gpus // size.gpus if gpus else size.memory_mb * tasks_per_node // size.cpus
    return Share(cpus, f"{memory}M", gpus or None)
