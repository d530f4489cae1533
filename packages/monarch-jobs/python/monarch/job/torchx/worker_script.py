"""The shell script that a replica runs in the place of its role's command: a pure function of the job's arguments.

The job's folder is `<workspace>/<apply_id>`, shared by client and replicas. The script starts `monarch worker`, and starts it again when
the client has put `wanted/<rank>` there, which also ends one that hangs. `hosts/<rank>.json` is written by the worker as soon as it
listens, `.exit` and `.host` by the script; `.pid` is there as long as the script is.
"""

from __future__ import annotations

import re
import shlex

PORT_TRIES = 100
# Seconds that a replica whose worker has failed waits for a new one to be wanted.
RELAUNCH_WAIT_S = 60

_SCRIPT = r"""#!/bin/sh
# worker.sh FIRST REPLICA: the worker of rank FIRST + REPLICA.
umask 077
rank=$(($1 + $2))
folder=@FOLDER@
mine=$folder/hosts/$rank
exec >>@LOGS@.$rank.out 2>>@LOGS@.$rank.err </dev/null
cd @DIRECTORY@ 2>/dev/null
# What concerns the client that submitted this, not what runs here.
unset MONARCH_JOB MONARCH_JOB_SHRINK MONARCH_BATCH_JOB MONARCH_BATCH_JOB_FILE MONARCH_JOB_SECRET_FILE
worker= stopped=
trap 'stopped=1; [ -z "$worker" ] || kill -TERM "$worker"' TERM INT
trap 'rm -f "$mine.pid"' EXIT
echo $$ >"$mine.pid.new" && mv -f "$mine.pid.new" "$mine.pid" || exit 74
echo "${SLURMD_NODENAME:-$(uname -n)}" >"$mine.host"
watch() {
    while sleep 1; do
        kill -0 "$1" || break
        [ ! -e "$folder/wanted/$rank" ] || kill -KILL "$1"
    done 2>/dev/null
}
while :; do
    rm -f "$mine.exit" "$mine.json" "$folder/wanted/$rank"
    @PYTHON@ -c "from monarch.extension.cli import main; main()" worker --listen @LISTEN@ --port-tries @TRIES@ \
        --secret-file "$folder/secret" --publish "$mine.json" &
    worker=$!
    watch $worker &
    watcher=$!
    wait $worker
    code=$?
    # A signal ends the wait before the worker ends.
    while kill -0 $worker 2>/dev/null; do
        wait $worker
        code=$?
    done
    kill $watcher 2>/dev/null
    worker=
    # One that has never listened would not the next time. The client removes the file as soon as it finds the exit code.
    left=@ROUNDS@
    { [ $code = 0 ] || [ ! -s "$mine.json" ]; } && left=0
    { echo $code >"$mine.exit.new" && mv -f "$mine.exit.new" "$mine.exit"; } 2>/dev/null || exit $code
    while [ ! -e "$folder/wanted/$rank" ]; do
        { [ "$stopped" ] || [ $left = 0 ]; } && exit $code
        left=$((left - 1))
        sleep 0.2
    done
done
"""


def script(folder: str, logs: str, directory: str, python_exe: str, listen: str) -> str:
    """The script's text: `folder` is the job's, `logs` the beginning of the paths of logs, `directory` where workers are to run."""
    values = {
        "FOLDER": shlex.quote(folder),
        "LOGS": shlex.quote(logs),
        "DIRECTORY": shlex.quote(directory),
        "PYTHON": shlex.quote(python_exe),
        "LISTEN": shlex.quote(listen),
        "TRIES": str(PORT_TRIES),
        "ROUNDS": str(RELAUNCH_WAIT_S * 5),  # five rounds a second
    }
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], _SCRIPT)
