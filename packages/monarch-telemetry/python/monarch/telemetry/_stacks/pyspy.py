"""py-spy: reads the stacks of a Python process from outside, with no help from that process.

py-spy pauses the process for the few milliseconds of a dump. A process that is stopped cannot be paused, and is read without. Frames of
native code are sometimes impossible to unwind; a dump without them is better than none. Both are warnings of the result.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from monarch.telemetry._stacks.frames import threads_of_pyspy
from monarch.telemetry._stacks.result import BinaryNotFound, Failed, Ok, Result
from monarch.telemetry.errors import TelemetryError

# Seconds of one dump, including a second attempt: py-spy needs about 0.02.
TIME_LIMIT = 10.0
# The most seconds of one profile, and samples per second.
MOST_SECONDS = 300
MOST_RATE = 1000
# The most bytes of output: a dump of 10,000 threads of 100 frames has 200 MB.
_MOST_OUTPUT = 256 << 20
_MOST_STDERR = 4096

_CAP_SYS_PTRACE = 19
_REFUSED = re.compile(r"permission denied|operation not permitted|\bEPERM\b|\bEACCES\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Profile:
    """Sampled stacks: names of calls from the outermost to the innermost, and the number of samples."""

    pid: int
    binary: str
    stacks: tuple[tuple[tuple[str, ...], int], ...]
    warnings: tuple[str, ...] = ()


class _Ended(Exception):
    """The program has ended without a result."""

    def __init__(self, failed: Failed, *, final: bool) -> None:
        super().__init__(failed.stderr)
        self.failed = failed
        # A second attempt would fail in the same way.
        self.final = final


def find(pyspy_bin: str = "", *, environ: Mapping[str, str] | None = None) -> Path | BinaryNotFound:
    """The path of py-spy: next to the interpreter, then `pyspy_bin`, then the variable PYSPY_BIN, then the folders of PATH."""
    variables = os.environ if environ is None else environ
    candidates = [Path(sys.executable).parent / "py-spy"] if sys.executable else []
    candidates += [Path(one) for one in (pyspy_bin, variables.get("PYSPY_BIN", "")) if one]
    candidates += [Path(folder) / "py-spy" for folder in variables.get("PATH", os.defpath).split(os.pathsep) if folder]
    candidates = list(dict.fromkeys(candidates))
    for one in candidates:
        if one.is_file() and os.access(one, os.X_OK):
            return one
    return BinaryNotFound(tuple(map(str, candidates)))


def dump(
    pid: int,
    *,
    native: bool = False,
    locals: bool = False,
    nonblocking: bool = False,
    timeout: float = TIME_LIMIT,
    pyspy_bin: str = "",
    environ: Mapping[str, str] | None = None,
) -> Result:
    """The stacks of a process. Raises nothing for a process or a py-spy that fails; `timeout` is in seconds and covers all attempts.

    `native` adds frames of compiled code, `locals` the local variables. `nonblocking` does not pause the process, which may give frames of
    different moments.
    """
    binary = find(pyspy_bin, environ=environ)
    if isinstance(binary, BinaryNotFound):
        return binary
    deadline = time.monotonic() + timeout
    warnings: list[str] = []
    nonblocking = _unpausable(pid, warnings) or nonblocking
    if nonblocking and native:
        native = False
        warnings.append("no native frames: the process is read without a pause")
    try:
        try:
            return _dump(binary, pid, native, locals, nonblocking, deadline, timeout, warnings)
        except _Ended as ended:
            if not native or ended.final:
                raise
            warnings.append(f"no native frames: {_cause(ended.failed.stderr)}")
            return _dump(binary, pid, False, locals, nonblocking, deadline, timeout, warnings)
    except _Ended as ended:
        return ended.failed


def _dump(
    binary: Path, pid: int, native: bool, locals: bool, nonblocking: bool, deadline: float, timeout: float, warnings: list[str]
) -> Ok:
    options = ["--native"] * native + ["--locals"] * locals + ["--nonblocking"] * nonblocking
    written = _run(binary, pid, ["dump", "--json", *options], deadline, timeout)
    try:
        threads = threads_of_pyspy(cast("object", json.loads(written)))
    except (ValueError, RecursionError, TelemetryError) as e:
        raise _Ended(Failed(pid, str(binary), 0, f"the output of py-spy cannot be read: {e}"), final=True) from None
    mode = " ".join(["py-spy"] + ["native"] * native + ["locals"] * locals + ["nonblocking"] * nonblocking)
    return Ok(pid, str(binary), threads, tuple(warnings), mode)


def profile(
    pid: int,
    *,
    duration_s: float = 10,
    rate_hz: int = 100,
    native: bool = False,
    threads: bool = False,
    nonblocking: bool = False,
    idle: bool = False,
    timeout: float = TIME_LIMIT,
    pyspy_bin: str = "",
    environ: Mapping[str, str] | None = None,
) -> Profile | BinaryNotFound | Failed:
    """Samples of the stacks of a process: `rate_hz` times a second for `duration_s` seconds, rounded up to whole seconds.

    `threads` puts the name of the thread around its stacks, `idle` counts threads that wait too. py-spy has `timeout` seconds beyond the
    duration. Raises `TelemetryError` for a duration or a rate out of range.
    """
    if not 0 < duration_s <= MOST_SECONDS:
        raise TelemetryError(f"the duration {duration_s} s is not above 0 and at most {MOST_SECONDS} s")
    if not 1 <= rate_hz <= MOST_RATE:
        raise TelemetryError(f"the rate {rate_hz} Hz is not within 1 to {MOST_RATE} Hz")
    binary = find(pyspy_bin, environ=environ)
    if isinstance(binary, BinaryNotFound):
        return binary
    seconds = math.ceil(duration_s)
    warnings: list[str] = []
    nonblocking = _unpausable(pid, warnings) or nonblocking
    if nonblocking and native:
        native = False
        warnings.append("no native frames: the process is read without a pause")
    options = ["--native"] * native + ["--threads"] * threads + ["--nonblocking"] * nonblocking + ["--idle"] * idle
    with tempfile.NamedTemporaryFile(prefix="monarch-profile-") as output:
        command = ["record", "--format", "raw", "--duration", str(seconds), "--rate", str(rate_hz), "--output", output.name, *options]
        limit = seconds + timeout
        try:
            _run(binary, pid, command, time.monotonic() + limit, limit)
        except _Ended as ended:
            return ended.failed
        # py-spy may have replaced the file that is open here.
        return Profile(pid, str(binary), parse_folded(Path(output.name).read_text("utf-8", "replace")), tuple(warnings))


def parse_folded(text: str) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Stacks of the form `outer;inner 12`, one a line. Raises `TelemetryError` for a line without a number."""
    found: list[tuple[tuple[str, ...], int]] = []
    for index, line in enumerate(text.split("\n")):
        if not line.strip():
            continue
        names, _, count = line.rstrip().rpartition(" ")
        if not names or not count.isdecimal():
            raise TelemetryError(f"malformed stacks: line {index + 1} has no count: {line[:80]!r}")
        found.append((tuple(names.split(";")), int(count)))
    return tuple(found)


def _run(binary: Path, pid: int, command: Sequence[str], deadline: float, timeout: float) -> bytes:
    """What the program has written. A program that does not end in time is killed, with its children."""

    def failed(code: int | None, text: str, *, final: bool) -> _Ended:
        return _Ended(Failed(pid, str(binary), code, text), final=final)

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [str(binary), *command, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # Ctrl-C at the terminal must not reach py-spy: it would end without a result.
                process_group=0,
            )
        except OSError as e:
            raise failed(None, f"{binary} cannot be started: {e.strerror}", final=True) from None
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise failed(None, f"py-spy has not ended within {timeout:g} s", final=True) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        text = errors.read(1 << 20).decode("utf-8", "replace").partition("\n\nStack backtrace:")[0].strip()[:_MOST_STDERR]
        if code != 0:
            refused = _refusal(pid) if _REFUSED.search(text) else None
            ending = f"py-spy was ended by signal {-code}" if code < 0 else f"py-spy has ended with exit code {code}"
            raise failed(code, f"{refused}\n{text}" if refused else text or ending, final=refused is not None)
        size = os.fstat(output.fileno()).st_size
        if size > _MOST_OUTPUT:
            raise failed(code, f"the output of py-spy has {size:,} bytes, the limit is {_MOST_OUTPUT:,}", final=True)
        output.seek(0)
        return output.read()


def _unpausable(pid: int, warnings: list[str]) -> bool:
    """Whether the process is stopped already, so that py-spy would wait for it or fail."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    stopped = {"T": "a signal", "t": "a debugger"}.get(state)
    if stopped is not None:
        warnings.append(f"process {pid} is stopped by {stopped}")
    return stopped is not None


def _refusal(pid: int) -> str:
    """Why the kernel lets this process not read that one."""
    if _effective_capabilities() >> _CAP_SYS_PTRACE & 1:
        return (
            f"the kernel refuses to let process {pid} be read, though this process has the capability CAP_SYS_PTRACE: process {pid} is in"
            " another user namespace, or a security module forbids it"
        )
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    yama = f" (kernel.yama.ptrace_scope is {scope})" if scope != "0" else ""
    return (
        f"reading process {pid} needs the capability CAP_SYS_PTRACE, which this process does not have{yama}\n"
        "hint: add it to the container (docker: --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
    )


def _effective_capabilities() -> int:
    with open("/proc/self/status") as f:
        return next((int(line.split()[1], 16) for line in f if line.startswith("CapEff:")), 0)


def _cause(stderr: str) -> str:
    """The innermost cause of a failure of py-spy, in one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return re.sub(r"^\d+: ", "", lines[-1]) if lines else "py-spy gave no reason"
