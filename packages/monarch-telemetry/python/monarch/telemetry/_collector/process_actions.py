"""What the collector does to single processes of its host, for those who may: stacks, samples, signals, settings, log levels."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable

from monarch.actor import MonarchError
from monarch.extension import RequestError, setting
from monarch.extension.inspection import host_state, proc_settings, proc_state, set_log_level
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


def read_settings(proc: int, seconds: float) -> str:
    """A JSON list of name, value, default, source and variable of each setting; a JSON text with the reason where the proc gives none."""
    try:
        found = proc_settings(proc, seconds)
    except (MonarchError, TimeoutError) as error:
        return json.dumps(str(error) or type(error).__name__)
    return json.dumps([[one.name, one.value, one.default, one.source, one.variable] for one in found])


def dump_state(proc: int, seconds: float) -> str:
    """A JSON object with `state`, the JSON text of the proc, or with `error`."""
    try:
        return json.dumps({"state": proc_state(proc, seconds)})
    except (MonarchError, TimeoutError) as error:
        return json.dumps({"error": str(error) or type(error).__name__})


def set_levels(procs: Iterable[int], level: int, seconds: float) -> tuple[int, str]:
    """In how many of these procs the level of `logging` is set, and why it is not in the others."""
    deadline = time.monotonic() + seconds
    count, refused = 0, list[str]()
    for proc, future in [(proc, set_log_level(proc, level)) for proc in procs]:
        try:
            future.get(timeout=max(0.0, deadline - time.monotonic()))
        except RequestError as error:
            if error.end is None:
                refused.append(f"proc {proc}: {error}")
        except TimeoutError:
            refused.append(f"proc {proc} does not answer")
        else:
            count += 1
    return count, "; ".join(refused)


def _pyspy() -> str:
    return str(setting("pyspy_bin") or "")
