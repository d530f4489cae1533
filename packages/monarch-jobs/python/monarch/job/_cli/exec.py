"""`monarch exec [OPTIONS] [--] CMD...`."""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

import click

from monarch.job._cli.verb import INTERRUPTED, job_and_hosts, mesh_of, pairs, variables, verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.job._client.execution import Target
    from monarch.job._job.job_state import JobState
    from monarch.job._job.trait import JobTrait


_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
# The output goes to a directory that the job gathers from its hosts.
_OUTPUTS = "exec_outputs"


@verb("exec", short_help="Runs a command on the hosts of the current job.", context_settings={"allow_interspersed_args": False})
@click.option("--all", "everywhere", is_flag=True, help="On all hosts of all meshes.")
@click.option("--mesh", metavar="NAME", help="On all hosts of this mesh.")
@click.option("--one", is_flag=True, help="On host 0 of the first mesh, which is what happens without any of these.")
@click.option("--point", metavar="D=N,...", help="At these coordinates of the first mesh; dimensions that are left out: on all of them.")
@click.option("--per-host", metavar="D=N,...", help="So many processes on each host, e.g. gpus=8.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="Environment; K alone passes on what it is here.")
@click.option("--workdir", metavar="D", help="The folder on the hosts to run in.")
@click.option("--kill", is_flag=True, help="Afterwards, kill the job.")
@click.option(
    "--script", type=click.File("rb", lazy=False), metavar="FILE|-", help="Send this file along, and run it; CMD are its arguments."
)
@click.option("-m", "module", metavar="MODULE", help="Run a Python module of the hosts; CMD are its arguments.")
@click.option(
    "--output-dir",
    metavar="D",
    help="Where each host keeps stdout.txt and stderr.txt, or stdout_RANK.txt of several processes; $SUBDIR in it is rank by rank.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="End it after so many seconds, with code 124.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD...")
def command(
    everywhere: bool,
    mesh: str | None,
    one: bool,
    point: str | None,
    per_host: str | None,
    env: tuple[str, ...],
    workdir: str | None,
    kill: bool,
    script: BinaryIO | None,
    module: str | None,
    output_dir: str | None,
    timeout: float | None,
    cmd: tuple[str, ...],
) -> int:
    """Runs CMD on hosts of the current job, with its output here as it comes, and exits with the largest of its exit codes.

    A signal counts as 128 plus its number, 124 stands for an end by --timeout, 127 and 126 for a command that could not be started.
    Ctrl-C sends SIGINT to the command, SIGTERM after 5 s, SIGKILL after 5 s more; a second one SIGKILL at once; the exit code is 130.

    \b
    For agents:
      Job reuse: `monarch apply MODULE.JOB` reserves the hosts once; run this as often as you like, and `monarch kill` at the end.
      One process per GPU: monarch exec --all --per-host gpus=8 -- python train.py, which finds MONARCH_RANK_GPUS and MONARCH_SIZE_GPUS.
      One host only: monarch exec --point hosts=3 -- nvidia-smi
      A script of yours: monarch exec --all --script setup.sh, or --script - to read it from stdin.
      With several ranks, lines begin with [rank], and each host keeps its own in the folder that the last line on stderr names.
    """
    if sum((everywhere, mesh is not None, one, point is not None)) > 1:
        raise click.UsageError("--all, --mesh, --one and --point exclude each other")
    if script is not None and module is not None:
        raise click.UsageError("--script and -m exclude each other")
    if not cmd and script is None and module is None:
        raise click.UsageError("no command")
    words, attached = _words(cmd, script, module)
    environment = variables(env)
    attend()
    job, state = job_and_hosts()
    try:
        chosen = _chosen(state, everywhere, mesh, point, per_host)
        targets = _targets(chosen, words, environment, workdir, timeout, attached, output_dir, _gathered(job, chosen))
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    try:
        return _run(targets)
    finally:
        if kill:
            job.kill()


def _words(cmd: tuple[str, ...], script: BinaryIO | None, module: str | None) -> tuple[tuple[str | None, ...], tuple[str, bytes] | None]:
    if module is not None:
        return ("-m", module, *cmd), None
    if script is None:
        return cmd, None
    text = script.read()
    name = os.path.basename(str(script.name)) if script.name not in ("-", "<stdin>") else "script"
    from monarch.job._host.command import PYTHON

    if text.startswith(b"#!"):
        # The kernel's rule: the program, and the rest of the line as one word.
        first = text[2:].partition(b"\n")[0].decode(errors="surrogateescape").strip()
        interpreter: tuple[str, ...] = tuple(first.split(None, 1)) or ("/bin/sh",)
    else:
        interpreter = (PYTHON,) if name.endswith(".py") else ("/bin/sh",)
    return (*interpreter, None, *cmd), (name, text)


def _chosen(
    state: JobState, everywhere: bool, mesh: str | None, point: str | None, per_host: str | None
) -> tuple[list[str], JobState, dict[str, int] | None, dict[str, int]]:
    per = pairs(per_host, "--per-host")
    if everywhere:
        return list(state), state, None, per
    name, hosts = mesh_of(state, mesh)
    if mesh is not None:
        return [name], state, None, per
    if point is not None:
        return [name], state, pairs(point, "--point"), per
    return [name], state, dict.fromkeys(hosts.sizes, 0), per


class _Gathered(NamedTuple):
    """A directory of the hosts, and where the job shows it on this machine, with `*` for each host."""

    remote: str
    local: str


def _gathered(job: JobTrait, chosen: tuple[list[str], JobState, dict[str, int] | None, dict[str, int]]) -> _Gathered | None:
    """The first gather mount of the job that has all meshes of the command."""
    from monarch.job._job.trait import current

    names, state, _, per_host = chosen
    for one in current(job).__core__.features:
        if one.name != "gather_mount":
            continue
        remote, local, meshes = (one.configured.get(key) for key in ("remote", "local", "meshes"))
        # The name of a host's directory is not unique among the ranks of a host.
        if not remote or not local or ("$SUBDIR" in remote and per_host) or not set(names) <= set(meshes or state):
            continue
        return _Gathered(remote, os.path.join(local, *(["*"] if len(state) > 1 else []), *(["*"] if state[names[0]].sizes else [])))
    return None


def _targets(
    chosen: tuple[list[str], JobState, dict[str, int] | None, dict[str, int]],
    words: tuple[str | None, ...],
    env: Mapping[str, str],
    workdir: str | None,
    timeout: float | None,
    script: tuple[str, bytes] | None,
    output_dir: str | None,
    gathered: _Gathered | None,
) -> list[Target]:
    from monarch.job._client.exec import make_target
    from monarch.job._host.command import PREFIX, SUBDIR, TEMPORARY

    names, state, point, per_host = chosen
    targets = [
        make_target(
            state[name],
            words,
            env,
            workdir,
            point=point,
            per_host=per_host,
            timeout=timeout,
            folder=output_dir,
            script=script,
            name=f"{name} " if len(names) > 1 else "",
            among=len(names),
        )
        for name in names
    ]
    if output_dir is not None or sum(target.ranks for target in targets) == 1:
        return targets
    run = secrets.token_hex(4)
    if gathered is None:
        # The place is the same on all hosts with the same temporary folder as this one, as most have.
        click.echo(f"monarch: output by rank on the hosts: {tempfile.gettempdir()}/{PREFIX}{run}", err=True)
        base = (TEMPORARY, f"{PREFIX}{run}")
    else:
        click.echo(f"monarch: output by rank: {gathered.local}/{_OUTPUTS}/{run}", err=True)
        base = (gathered.remote, _OUTPUTS, run)
    return [
        dataclasses.replace(
            target,
            order=dataclasses.replace(target.order, folder="/".join((*base, *([name] if len(names) > 1 else []), SUBDIR))),
        )
        for target, name in zip(targets, names, strict=True)
    ]


def _run(targets: list[Target]) -> int:
    from monarch.job._client.exec import start
    from monarch.job.errors import ExecError

    execution, result = start(targets, ends_with_reader=True)
    interrupts = 0
    while True:
        try:
            code = result.get()
        except KeyboardInterrupt:
            interrupts += 1
            (execution.interrupt if interrupts == 1 else execution.kill).broadcast()
            continue
        except ExecError as e:
            if interrupts:
                return INTERRUPTED
            click.echo(f"monarch: {e}", err=True)
            return _NOT_FOUND if e.errno == errno.ENOENT else _NOT_EXECUTABLE
        return INTERRUPTED if interrupts else code


# Seconds from the first interrupt of an abandoned child to the second one, which kills: descendants of the command end within 2 s.
_GRACE = 1.0
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def attend() -> None:
    """Goes on in a child process, so that a killed command still ends what it started on hosts.

        command (the process of the user)  --signals-->  child (the client of the job)
                                           --pipe----->  end of file: the command was killed

    Returns in the child. The parent waits, passes signals on as SIGINT, and exits as the child does. A process that may be a client
    already, or has other threads, goes on by itself.

    Hosts cannot distinguish a killed client from a client that the network has cut off: without the child they keep its work for the whole
    lease (`mesh_orphan_timeout`). The kernel closes the pipe of a killed command at once. The child is in a session of its own: signals of
    the terminal and of the process group reach the command only, which passes each of them on once.
    """
    if "monarch.actor" in sys.modules or threading.active_count() > 1:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller  # pyright: ignore[reportUnnecessaryComparison]
            stream.flush()
    read, write = os.pipe2(os.O_CLOEXEC)
    # The end of the child is a signal too, even if the caller of this process ignores it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A signal that arrives meanwhile waits until the parent can pass it on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*_PASSED_ON, signal.SIGTSTP, signal.SIGCHLD])
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.setsid()
        _continue_with_parent()
        # A shell script's background commands ignore this signal; here only the parent sends it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        threading.Thread(target=_watch, args=(read,), daemon=True, name="monarch-attended").start()
        return
    os.close(read)
    _wait(pid)


def _continue_with_parent() -> None:
    """A child that is stopped (SIGSTOP) goes on when its parent ends, and sees the end of the pipe."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def _watch(pipe: int) -> None:
    """In the child: interrupts this process when the parent is gone, as Ctrl-C does, and then as a second Ctrl-C does."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE)
    os.kill(os.getpid(), signal.SIGINT)


def _wait(pid: int) -> NoReturn:
    """All signals that count are blocked, and stay it: `sigwait` misses none, whenever it comes."""
    # Signals that are ignored, as by `nohup`, stay ignored.
    waited = {number for number in (*_PASSED_ON, signal.SIGTSTP, signal.SIGCHLD) if signal.getsignal(number) != signal.SIG_IGN}
    # WNOWAIT: until the child is reaped below, its number identifies no other process.
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        number = signal.sigwait(waited)
        if number in _PASSED_ON:
            os.kill(pid, signal.SIGINT)
            # A stopped child would not end.
            os.kill(pid, signal.SIGCONT)
        elif number == signal.SIGTSTP:
            # Ctrl-Z: both processes stop, and continue together.
            os.kill(pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # `sys.exit` is not used: the exit handlers have run in the child.
    os._exit(code if code >= 0 else 128 - code)
