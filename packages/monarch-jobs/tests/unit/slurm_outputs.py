"""What SLURM's commands print, by release.

22.05 is recorded from a real cluster (tools/slurm). The others are written after the manual pages of those releases (squeue, scontrol,
sacct), for the formats that `monarch.job.slurm.output` asks for: where they differ from 22.05, the difference is the release's
(`TRES` became `ReqTRES` and `AllocTRES`, `OOMKillStep` and `SLUID` were added, accounting shows `CANCELLED by UID`).
"""

from __future__ import annotations

from typing import NamedTuple


class Release(NamedTuple):
    """One failed job (4711) and one heterogeneous one that runs (4712)."""

    name: str
    squeue: str
    scontrol: str
    sacct: str


_BEGIN = (
    "JobId=4711 JobName=monarch job UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A Priority=4294901756 Nice=0 Account=lab QOS=normal"
    " JobState=TIMEOUT Reason=TimeLimit Dependency=(null) Requeue=0 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:15"
    " RunTime=00:01:02 TimeLimit=00:01:00 TimeMin=N/A SubmitTime=2026-11-21T10:00:00 EligibleTime=2026-11-21T10:00:00"
    " StartTime=2026-11-21T10:00:01 EndTime=2026-11-21T10:01:03 Deadline=N/A"
)
_PLACE = " Partition=main AllocNode:Sid=login:2311 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[0-2] BatchHost=n0"
_END = (
    " Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* Features=(null) DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0"
    " Licenses=(null) Network=(null) Command=(null) WorkDir=/shared/a b StdErr=/shared/4711.out StdIn=/dev/null StdOut=/shared/4711.out"
)
_SQUEUE = "4711|TIMEOUT|TimeLimit|n[0-2]\n4712+0|RUNNING|None|n[3-4]\n4712+1|RUNNING|None|gpu07\n"
_SACCT = "4711|TIMEOUT|0:15|TimeLimit|2026-11-21T10:01:03\n4712+0|RUNNING|0:0|None|Unknown\n4712+1|RUNNING|0:0|None|Unknown\n"

RELEASES = (
    Release(
        "20.11",
        _SQUEUE,
        f"{_BEGIN} AccrueTime=2026-11-21T10:00:00{_PLACE} NumNodes=3 NumCPUs=6 NumTasks=3 TRES=cpu=6,node=3{_END} NtasksPerTRES:0\n",
        _SACCT,
    ),
    Release(
        "21.08",
        _SQUEUE,
        f"{_BEGIN} AccrueTime=Unknown{_PLACE} NumNodes=3 NumCPUs=6 TRES=cpu=6,mem=6000M,node=3,billing=6{_END} Power=\n",
        _SACCT,
    ),
    Release(
        "22.05",
        _SQUEUE,
        f"{_BEGIN} PreemptEligibleTime=2026-11-21T10:00:01 PreemptTime=None SuspendTime=None SecsPreSuspend=0 Scheduler=Main{_PLACE}"
        f" TRES=cpu=6,mem=6000M,node=3,billing=6{_END} Power= \n",
        _SACCT,
    ),
    Release(
        "23.11",
        _SQUEUE,
        f"{_BEGIN} Scheduler=Backfill:*{_PLACE} NumNodes=3 ReqTRES=cpu=3,node=3,billing=3 AllocTRES=cpu=6,mem=6000M,node=3{_END}\n",
        _SACCT.replace("|TIMEOUT|", "|TIMEOUT+|"),
    ),
    Release(
        "24.11",
        _SQUEUE,
        f"{_BEGIN.replace('JobId=4711', 'JobId=4711 SLUID=s9ABCDEF')} Scheduler=Main{_PLACE} StepMgrEnabled=Yes NumNodes=3"
        f" ReqTRES=cpu=3,node=3 AllocTRES=cpu=6,node=3{_END} TresPerTask=cpu=2 OOMKillStep=0\n",
        _SACCT,
    ),
)
