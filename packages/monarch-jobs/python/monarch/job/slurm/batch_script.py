"""The sbatch script of a job as text: a pure function of its arguments.

The job's folder is `<job_dir>/<job id>`, on the file system that all nodes share. The script waits until the client has put the secret
there (a job whose client went between submission and that ends by itself), starts one `monarch worker` a node by `srun`, and then starts
workers again that `wanted/<rank>` asks for: steps that a client starts would end with the client's machine.

`hosts/<rank>.json` is written by the worker as soon as it listens, `hosts/<rank>.pid` and `hosts/<rank>.exit` by the shell around it,
`hosts/<rank>.failed` has the exit code of an srun that has started a worker again and could not, or has lost its node.
`nodes` has one line a node, in the order of the ranks: SLURM removes failed nodes from its report about the job.
"""

from __future__ import annotations

import re
import shlex

from monarch.job.slurm.arguments import SlurmArguments

SECRET_WAIT_S = 60  # the client writes it within a second after sbatch has returned
RELAUNCH_WAIT_S = 60  # the time that an allocation without a worker waits for a new one to be wanted
PORT_TRIES = 100

# The script that srun runs on every node. It contains no single quotes.
_WORKER = r"""
rank=${1:-$((MONARCH_FIRST_RANK + SLURM_PROCID))}
mine=$MONARCH_JOB_DIR/hosts/$rank
exec >>"$MONARCH_JOB_LOGS.$rank.out" 2>&1 </dev/null
# A worker of this rank that was given up and is still there. Without the file it does not say how it ended.
old=
{ read -r old <"$mine.pid"; } 2>/dev/null
rm -f "$mine.pid"
if [ "$old" ] && grep -q -a -F -- "$mine.json" "/proc/$old/cmdline"; then kill -KILL "$old"; fi 2>/dev/null
rm -f "$mine.exit" "$mine.json"
"$MONARCH_JOB_PYTHON" -c "from monarch.extension.cli import main; main()" worker --listen "$MONARCH_JOB_LISTEN" --port-tries @TRIES@ \
    --secret-file "$MONARCH_JOB_DIR/secret" --publish "$mine.json" &
echo $! >"$mine.pid"
wait $!
code=$?
[ -s "$mine.json" ] && : >"$MONARCH_JOB_DIR/published"
# Only the last worker of a rank says how it ended.
if read -r last <"$mine.pid" && [ "$last" = $! ]; then echo $code >"$mine.exit.new" && mv -f "$mine.exit.new" "$mine.exit"; fi
exit $code
"""

_HEAD = r"""
set -u
umask 077
export MONARCH_JOB_DIR=@DIRECTORY@/$SLURM_JOB_ID
export MONARCH_JOB_LOGS=@LOGS@/monarch-$SLURM_JOB_ID
export MONARCH_JOB_PYTHON=@PYTHON@
export MONARCH_JOB_LISTEN=@LISTEN@
worker='@WORKER@'
step() {
    srun --overlap --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --mem=0 --export=ALL --input=none "$@"
}
@TRAP@exec {pause}<> <(:)
for ((left = @SECRET_WAIT@ * 10; left > 0; left--)); do
    [ -s "$MONARCH_JOB_DIR/secret" ]@AWAITED@ && break
    read -r -t 0.1 -u $pause
done
if [ $left = 0 ]; then
    echo "monarch: nobody has brought the secret of this job within @SECRET_WAIT@ s: its client is gone" >&2
    exit 75
fi
cd "$MONARCH_JOB_DIR" && rm -rf hosts wanted nodes restarts published && mkdir hosts wanted || exit 74
echo "${SLURM_RESTART_COUNT:-0}" >restarts
# What concerns the client that submitted this, not what runs here.
unset MONARCH_JOB MONARCH_JOB_SHRINK MONARCH_BATCH_JOB MONARCH_BATCH_JOB_FILE MONARCH_JOB_SECRET_FILE
"""

_GROUP = r"""
scontrol show hostnames "$@NODES@" >>nodes.new
starts+=(@FIRST@)
count=$@COUNT@
MONARCH_FIRST_RANK=@FIRST@ step @OPTIONS@ --nodes=$count --ntasks=$count bash -c "$worker" &
"""

_LOOP = r"""
mv -f nodes.new nodes
cd "$OLDPWD"
number=0
# A worker on a node that srun does not reach reports nothing: what srun ended with is all that is known of it.
again() {
    local mine=$MONARCH_JOB_DIR/hosts/$2 last code
    step "${@:3}" bash -c "$worker" worker "$2"
    code=$?
    if read -r last <"$mine.step" && [ "$last" = "$1" ] && [ $code != 0 ] && [ ! -e "$mine.exit" ]; then
        echo $code >"$mine.failed.new" && mv -f "$mine.failed.new" "$mine.failed"
    fi
}
serve() {
    local want rank node group option
    for want in "$MONARCH_JOB_DIR"/wanted/*; do
        [ -e "$want" ] || continue
        rank=${want##*/}
        read -r node <"$want"
        rm -f "$want"
        option=()
        for ((group = ${#starts[@]} - 1; group > 0; group--)); do [ "$rank" -ge "${starts[group]}" ] && break; done
        [ ${#starts[@]} -gt 1 ] && option=(--het-group=$group)
        number=$((number + 1))
        echo $number >"$MONARCH_JOB_DIR/hosts/$rank.step"
        again $number "$rank" "${option[@]}" --nodes=1 --ntasks=1 --nodelist="$node" &
    done
    read -r -t 0.2 -u $pause
}
"""

# Ends when no worker has run for a while, or none has ever started, with the worst of their exit codes.
_RESERVED = r"""
worst() {
    local code worst=0 file
    for file in "$MONARCH_JOB_DIR"/hosts/*.pid; do
        code=1 # one that has not said how it ended
        read -r code 2>/dev/null <"${file%.pid}.exit"
        [ "$code" -gt $worst ] && worst=$code
    done
    return $worst
}
idle=0
while [ $idle -lt @RELAUNCH_WAIT@ ]; do
    serve
    if [ -n "$(jobs -rp)" ]; then
        idle=0
    else
        worst && exit 0
        [ -e "$MONARCH_JOB_DIR/published" ] || break
        idle=$((idle + 1))
    fi
done
worst
code=$?
for file in "$MONARCH_JOB_DIR"/hosts/*.exit; do
    rank=${file##*/} rank=${rank%.exit}
    [ -e "$file" ] && tail -n 5 "$MONARCH_JOB_LOGS.$rank.out" | sed "s/^/[worker $rank] /" >&2
done
exit $code
"""

_TRAP = r"""trap 'rm -f "$MONARCH_JOB_DIR/secret"' EXIT
"""

# No client ends a job that ends by itself: the client's files go with it, if the home is the same.
_TRAP_OF_BATCH = r"""forget() {
    local kept
    rm -f "$MONARCH_JOB_DIR/secret"
    read -r kept <"$MONARCH_JOB_DIR/credentials" && rm -f "$kept/secret" && rmdir "$kept"
} 2>/dev/null
trap forget EXIT
"""

_BATCH = r"""
MONARCH_BATCH_JOB=1 MONARCH_BATCH_JOB_FILE="$MONARCH_JOB_DIR/job.json" "$MONARCH_JOB_PYTHON" @SCRIPT@ &
client=$!
while kill -0 $client 2>/dev/null; do serve; done
wait $client
exit $?
"""


def script(arguments: SlurmArguments, directory: str, client_script: str | None = None) -> str:
    """What sbatch reads; `directory` is the folder below which the job makes its own."""
    return "\n".join(("#!/bin/bash", *_directives(arguments, directory))) + "\n" + _body(arguments, directory, client_script)


def total(arguments: SlurmArguments) -> int:
    """Nodes that are asked for, spares included."""
    return sum(arguments.meshes.values()) + arguments.spares


def _directives(arguments: SlurmArguments, directory: str) -> list[str]:
    once = [
        f"--job-name={_quoted(arguments.job_name)}",
        f"--output={_quoted((arguments.log_dir or directory) + '/monarch-%j.out')}",
        "--open-mode=append",
        # The loss of a node is not the end: `heal` replaces it.
        "--no-kill",
        "--requeue" if arguments.requeue else "--no-requeue",
    ]
    each = [f"--ntasks-per-node={arguments.ntasks_per_node}"]
    if arguments.exclusive:
        each.append("--exclusive")
    for name, value in (
        ("time", arguments.time_limit),
        ("partition", arguments.partition),
        ("account", arguments.account),
        ("qos", arguments.qos),
        ("cpus-per-task", arguments.cpus_per_task),
        ("mem", arguments.mem),
        ("gpus-per-node", arguments.gpus_per_node),
        ("gres", arguments.gres),
    ):
        if value is not None:
            each.append(f"--{name}={_quoted(str(value))}")
    if not arguments.mesh_args:
        nodes = str(total(arguments)) if arguments.min_nodes is None else f"{arguments.min_nodes}-{total(arguments)}"
        return [f"#SBATCH {word}" for word in (*once, f"--nodes={nodes}", *each, *arguments.slurm_args)]
    lines: list[str] = []
    for index, (name, count) in enumerate(arguments.meshes.items()):
        own = (f"--nodes={count}", *each, *arguments.slurm_args, *arguments.mesh_args.get(name, ()))
        lines += ["#SBATCH hetjob"] * (index > 0)
        lines += [f"#SBATCH {word}" for word in ((*once, *own) if index == 0 else own)]
    return lines


def _body(arguments: SlurmArguments, directory: str, client_script: str | None) -> str:
    parts = [_HEAD]
    first = 0
    for index, count in enumerate(arguments.meshes.values() if arguments.mesh_args and len(arguments.meshes) > 1 else (0,)):
        group = f"_HET_GROUP_{index}" if count else ""
        values = {"NODES": f"SLURM_JOB_NODELIST{group}", "COUNT": f"SLURM_JOB_NUM_NODES{group}", "FIRST": str(first)}
        parts.append(_filled(_GROUP, {**values, "OPTIONS": f"--het-group={index}" if count else ""}).replace("step  ", "step "))
        first += count
    parts.append(_LOOP)
    parts.append(_BATCH if client_script else _RESERVED)
    values = {
        "WORKER": _WORKER.strip("\n"),
        "DIRECTORY": shlex.quote(directory),
        "LOGS": shlex.quote(arguments.log_dir or directory),
        "PYTHON": shlex.quote(arguments.python_exe),
        "LISTEN": shlex.quote(listen_address(arguments)),
        # This runs at any end. A job that may be requeued needs the secret again, and cannot know the requeue: a preemption ends the
        # workers first, so that the script may end by itself before SLURM's signal arrives.
        "TRAP": "" if arguments.requeue else _TRAP_OF_BATCH if client_script else _TRAP,
        "SCRIPT": shlex.quote(client_script or ""),
        "AWAITED": ' && [ -s "$MONARCH_JOB_DIR/job.json" ]' if client_script else "",
        "SECRET_WAIT": str(SECRET_WAIT_S),
        "RELAUNCH_WAIT": str(RELAUNCH_WAIT_S * 5),  # five rounds a second
        "TRIES": str(PORT_TRIES),
    }
    return _filled("".join(parts), values)


def listen_address(arguments: SlurmArguments) -> str:
    """Where workers listen: `bind_to` is an address with a port, or a host name or IP address alone."""
    if arguments.bind_to and "://" in arguments.bind_to:
        return arguments.bind_to
    scheme, _, bind = (arguments.bind_to or "*").rpartition("://")
    is_bare_ipv6 = ":" in bind and not bind.startswith("[")
    return f"{scheme or 'tcp'}://{f'[{bind}]' if is_bare_ipv6 else bind}:{arguments.monarch_port}"


def _filled(text: str, values: dict[str, str]) -> str:
    # The values are replaced in one pass: a value that looks like a name stays unchanged. `@WORKER@` has names of its own, and comes first.
    if "WORKER" in values:
        text = text.replace("@WORKER@", values["WORKER"])
    return re.sub(r"@([A-Z_]+)@", lambda found: values.get(found[1], found[0]), text)


def _quoted(word: str) -> str:
    """A value in an `#SBATCH` line, which knows quotes and `#` but no shell."""
    return word if re.fullmatch(r"[\w./%:,=+@\-\[\]*]+", word) else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
