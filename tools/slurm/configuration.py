"""slurm.conf and gres.conf of a cluster whose nodes are all on this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple


class Node(NamedTuple):
    """The resources of a node in SLURM's configuration; `gpus` devices count as GPUs."""

    cpus: int = 2
    memory_mb: int = 4096
    gpus: int = 0


def node_address(index: int, *, named: bool) -> str:
    """The address of a node's daemon: one of its own if nodes are found by name."""
    return f"127.0.1.{10 + index}" if named else "127.0.0.1"


def slurm_conf(
    directory: Path,
    nodes: list[Node],
    first_port: int,
    *,
    cgroups: bool = False,
    prefix: str = "n",
    extra: str = "",
    named: bool = False,
) -> str:
    """The text of slurm.conf. The controller listens on `first_port`, the nodes on the following ports.

    All intervals are short: scheduling within a second, a lost node within ten. Memory is limited by control groups, or checked by sampling
    (`OverMemoryKill`), which needs none, and has no limit for steps that take all memory of their job. There is no accounting database;
    ended jobs are in `completed`, and in the controller's memory for ten minutes.
    """
    host = socket.gethostname().split(".")[0]
    lines = [
        "ClusterName=monarch",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={first_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/munge/socket",
        "CredType=cred/munge",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool/%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        f"TaskPlugin=task/{'cgroup' if cgroups else 'none'}",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=1",
        *([] if cgroups else ["JobAcctGatherParams=OverMemoryKill"]),
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0",
        "PriorityType=priority/multifactor",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "PropagateResourceLimits=NONE",
        "SlurmctldTimeout=5",
        "SlurmdTimeout=5",
        # Seconds of retries for a node that is gone: with the default of 10 s its loss is seen 10 s later.
        "MessageTimeout=3",
        "TCPTimeout=1",
        "KillWait=2",
        "UnkillableStepTimeout=10",
        "MinJobAge=600",
        "InactiveLimit=0",
        "WaitTime=0",
        "JobRequeue=0",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={directory}/completed",
        *(["GresTypes=gpu"] if any(node.gpus for node in nodes) else []),
        *extra.splitlines(),
    ]
    for index, node in enumerate(nodes):
        gres = f" Gres=gpu:{node.gpus}" if node.gpus else ""
        name, address = f"{prefix}{index}", node_address(index, named=named)
        lines.append(
            f"NodeName={name} NodeHostname={name if named else host} NodeAddr={address} Port={first_port + 1 + index} CPUs={node.cpus}"
            f" RealMemory={node.memory_mb}{gres} State=UNKNOWN"
        )
    everything = f"Nodes={prefix}[0-{len(nodes) - 1}]"
    lines.append(f"PartitionName=main {everything} Default=YES MaxTime=60 State=UP OverSubscribe=NO PriorityTier=10")
    lines.append(f"PartitionName=low {everything} MaxTime=60 State=UP OverSubscribe=NO PriorityTier=1")
    return "\n".join(lines) + "\n"


CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainRAMSpace=yes
"""


def gres_conf(directory: Path, nodes: list[Node], prefix: str = "n") -> str:
    """The text of gres.conf. The device nodes exist (major 195, as of NVIDIA's driver) without a driver: SLURM only counts them."""
    return "".join(
        f"NodeName={prefix}{index} Name=gpu File={directory}/devices/nvidia[0-{node.gpus - 1}] Flags=nvidia_gpu_env\n"
        if node.gpus > 1
        else f"NodeName={prefix}{index} Name=gpu File={directory}/devices/nvidia0 Flags=nvidia_gpu_env\n"
        for index, node in enumerate(nodes)
        if node.gpus
    )
