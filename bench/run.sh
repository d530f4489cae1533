#!/usr/bin/env bash
# Our numbers beside torchmonarch 0.7.0 and the floors, in the same minutes on the same machine.
#
#     hatch run bench [--rounds N] [--bench GROUP]... [--floors]
#
# Groups: startup spawn spawn_actors rtt throughput mesh payload bulk failure footprint; all but `bulk` by default (that one needs
# monarch-rdma). --floors adds raw_bench.py. JSON lines go to bench/results/<time>.jsonl, the table to standard output.
# Needs root: everything runs in fresh process and network namespaces, so that nothing is left running and no packet leaves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

floors=false
groups=false
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --floors) floors=true ;;
    --bench) groups=true options+=("$1" "$2") && shift ;;
    --rounds) options+=("$1" "$2") && shift ;;
    *) echo "bench/run.sh: unknown option '$1'" >&2 && exit 2 ;;
    esac
    shift
done
if [ "$groups" = false ]; then
    for group in startup spawn spawn_actors rtt throughput mesh payload failure footprint; do options+=(--bench "$group"); done
fi

if [ "$(id -u)" -ne 0 ]; then
    echo 'run.sh: needs root: each bench runs in namespaces of its own' >&2
    exit 2
fi
bash tools/system_packages.sh bench
bash bench/make_venvs.sh
ours=$root/bench/.venvs/ours/bin/python
reference=$root/bench/.venvs/reference/bin/python
base="torchmonarch 0.7.0"
peers=(--peer "$base=$reference:monarch_bench.py" --peer "ours=$ours:monarch_bench.py")
if [ "$floors" = true ]; then
    for kind in pipe unix asyncio zmq fork shm; do peers+=(--peer "raw $kind=$reference:raw_bench.py:--kind:$kind"); done
fi

mkdir -p bench/results
out=$root/bench/results/$(date -u +%Y%m%dT%H%M%S).jsonl
"$ours" bench/peers/run.py --out "$out" "${peers[@]}" "${options[@]}"
"$ours" bench/peers/compare.py "$out" --base "$base"
echo "results: bench/results/$(basename "$out")"
