"""What a container `worker` runs: a shell around the worker, because of the secret and of the exit code.

The shell gives the secret to the worker as a pipe: the files of a Secret volume belong to root and are readable by a group, which the
worker refuses to read. Where the pod is deleted or evicted, SIGTERM comes first, and a worker that is asked to end does so with 0: the
index of a Job would count as completed and would not be replaced. The shell ends with 143 (128 + SIGTERM) then. It is process 1 of the
container, so it reaps processes that have lost their parent.

A worker has the identity of its pod where the variable with the pod's uid is set: the first eight hexadecimal digits, as base58, which
has no 0 (a g stands for it). Kubernetes replaces `$(NAME)` in commands: there is none in this text.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch.job.kubernetes.manifests.names import POD_UID_VARIABLE

MOUNT_PATH = "/run/monarch/join"
SECRET_PATH = f"{MOUNT_PATH}/secret"
_DESCRIPTOR = 3
_INHERITED = f"/dev/fd/{_DESCRIPTOR}"

_RUN = r"""
ended= worker=
trap 'ended=1; [ "$worker" ] && kill -TERM "$worker" 2>/dev/null' TERM INT
[ -w "${HOME:-/}" ] || export HOME=/tmp
id=${@UID@%%-*}
while :; do case $id in *0*) id=${id%%0*}g${id#*0} ;; *) break ;; esac; done
[ "$id" ] && export MONARCH_SERVICE_PROC_IDS="worker<g$id>" MONARCH_SERVICE_PROC_RANK=0
@START@
worker=$!
[ "$ended" ] && kill -TERM "$worker" 2>/dev/null
wait "$worker"
code=$?
while [ "$code" -gt 128 ] && kill -0 "$worker" 2>/dev/null; do wait "$worker"; code=$?; done
[ "$ended" ] && exit 143
exit "$code"
"""
_PLAIN = '"$@" </dev/null &'
_WITH_SECRET = f'cat {SECRET_PATH} | {{ exec {_DESCRIPTOR}<&0 </dev/null; exec "$@"; }} &'
_WITH_SECRET_VARIABLE = f"export MONARCH_JOB_SECRET_FILE={_INHERITED}\n{_WITH_SECRET}"


def worker_command(port: int, *, insecure: bool, idle_timeout: float | None) -> list[str]:
    """The worker of an image, as the command of its container."""
    worker = ["monarch", "worker", "--listen", f"tcp://*:{port}"]
    worker += ["--insecure"] if insecure else ["--secret-file", _INHERITED]
    if idle_timeout is not None:
        worker += ["--idle-timeout", f"{idle_timeout:g}"]
    return _shell(_PLAIN if insecure else _WITH_SECRET, worker)


def wrapped_command(command: Sequence[str], *, insecure: bool) -> list[str]:
    """A command of the user, which finds the secret by `MONARCH_JOB_SECRET_FILE`."""
    return _shell(_PLAIN if insecure else _WITH_SECRET_VARIABLE, command)


def _shell(start: str, command: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", _RUN.replace("@START@", start).replace("@UID@", POD_UID_VARIABLE).strip("\n"), "monarch-worker", *command]
