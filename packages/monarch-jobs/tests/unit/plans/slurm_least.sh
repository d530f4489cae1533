#!/bin/bash
#SBATCH --job-name=monarch_job
#SBATCH --output=/shared/jobs/monarch-%j.out
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive

set -u
umask 077
export MONARCH_JOB_DIR=/shared/jobs/$SLURM_JOB_ID
export MONARCH_JOB_LOGS=/shared/jobs/monarch-$SLURM_JOB_ID
export MONARCH_JOB_PYTHON=python
export MONARCH_JOB_LISTEN='tcp://*:22222'
worker='rank=${1:-$((MONARCH_FIRST_RANK + SLURM_PROCID))}
mine=$MONARCH_JOB_DIR/hosts/$rank
exec >>"$MONARCH_JOB_LOGS.$rank.out" 2>&1 </dev/null
# A worker of this rank that was given up and is still there. Without the file it does not say how it ended.
old=
{ read -r old <"$mine.pid"; } 2>/dev/null
rm -f "$mine.pid"
if [ "$old" ] && grep -q -a -F -- "$mine.json" "/proc/$old/cmdline"; then kill -KILL "$old"; fi 2>/dev/null
rm -f "$mine.exit" "$mine.json"
"$MONARCH_JOB_PYTHON" -c "from monarch.extension.cli import main; main()" worker --listen "$MONARCH_JOB_LISTEN" --port-tries 100 \
    --secret-file "$MONARCH_JOB_DIR/secret" --publish "$mine.json" &
echo $! >"$mine.pid"
wait $!
code=$?
[ -s "$mine.json" ] && : >"$MONARCH_JOB_DIR/published"
# Only the last worker of a rank says how it ended.
if read -r last <"$mine.pid" && [ "$last" = $! ]; then echo $code >"$mine.exit.new" && mv -f "$mine.exit.new" "$mine.exit"; fi
exit $code'
step() {
    srun --overlap --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --mem=0 --export=ALL --input=none "$@"
}
trap 'rm -f "$MONARCH_JOB_DIR/secret"' EXIT
exec {pause}<> <(:)
for ((left = 60 * 10; left > 0; left--)); do
    [ -s "$MONARCH_JOB_DIR/secret" ] && break
    read -r -t 0.1 -u $pause
done
if [ $left = 0 ]; then
    echo "monarch: nobody has brought the secret of this job within 60 s: its client is gone" >&2
    exit 75
fi
cd "$MONARCH_JOB_DIR" && rm -rf hosts wanted nodes restarts published && mkdir hosts wanted || exit 74
echo "${SLURM_RESTART_COUNT:-0}" >restarts
# What concerns the client that submitted this, not what runs here.
unset MONARCH_JOB MONARCH_JOB_SHRINK MONARCH_BATCH_JOB MONARCH_BATCH_JOB_FILE MONARCH_JOB_SECRET_FILE

scontrol show hostnames "$SLURM_JOB_NODELIST" >>nodes.new
starts+=(0)
count=$SLURM_JOB_NUM_NODES
MONARCH_FIRST_RANK=0 step --nodes=$count --ntasks=$count bash -c "$worker" &

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
while [ $idle -lt 300 ]; do
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
