"""What the collector does to single processes of its host, for those who may: reads their stacks, samples them, sends signals."""

from __future__ import annotations

import json
import os

from monarch.extension import setting
from monarch.extension.inspection import host_state
from monarch.telemetry._stacks.pyspy import Profile, dump, profile


def read_stacks(pid: int, seconds: float) -> str:
    """The JSON of `/v1/pyspy/{proc}`."""
    return json.dumps(dump(pid, timeout=seconds, pyspy_bin=_pyspy()).to_json())


def sample(pid: int, duration: float, rate: int, native: bool, threads: bool, nonblocking: bool) -> str:
    """An object with `stacks`, pairs of names from the outermost call and a number of samples, or with `error`."""
    found = profile(pid, duration_s=duration, rate_hz=rate, native=native, threads=threads, nonblocking=nonblocking, pyspy_bin=_pyspy())
    return json.dumps({"stacks": found.stacks} if isinstance(found, Profile) else {"error": found.describe()})


def send_signal(pid: int, proc: int, number: int) -> str | None:
    """None where it was sent, else the reason: a number may belong to another process by now."""
    there = {int(one["uid"], 16): one["pid"] for one in host_state()["procs"]}
    if there.get(proc) != pid:
        return f"proc {proc} does not run as process {pid} any more"
    try:
        os.kill(pid, number)
    except (OSError, ValueError) as error:
        return f"signal {number} cannot be sent: {error}"
    return None


def _pyspy() -> str:
    return str(setting("pyspy_bin") or "")
