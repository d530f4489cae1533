"""Processes of this machine that are stopped by a signal or a debugger."""

from __future__ import annotations


def why_stopped(pid: int) -> str | None:
    """The reason why a stopped process does not answer; None for a process that is not stopped."""
    try:
        with open(f"/proc/{pid}/status") as f:
            fields = dict(line.split(":", 1) for line in f if ":" in line)
    except OSError:  # the process has ended
        return None
    state, tracer = fields.get("State", "").strip(), fields.get("TracerPid", "0").strip()
    if state.startswith("t"):
        return f"it is stopped by process {tracer}, which traces it"
    if state.startswith("T"):
        return f"it is stopped by a signal; `kill -CONT {pid}` continues it"
    return None
