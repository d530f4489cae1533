"""The task of a SkyPilotJob as YAML: a worker on every node, which waits for the job's secret.

`text` is deterministic: the same arguments and the same client give the same bytes.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib.metadata import distributions
from typing import Any

from monarch.job.skypilot.arguments import SkyPilotArguments

# An image with PyTorch and CUDA; a node without GPUs takes the provider's own image.
GPU_IMAGE = "docker:pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
PORT_TRIES = 100
# Seconds that a worker waits for the client's secret, and that an ended one waits to be started again.
SECRET_WAIT_S = 600
RELAUNCH_WAIT_S = 600

# Prints the versions of Python and monarch; a checkout has no version.
VERSIONS = (
    "import sys, importlib.metadata as m, monarch.extension.cli;"
    " print('%d.%d' % sys.version_info[:2], next((d.version for d in m.distributions(name='monarch-core')), '-'))"
)

_SETUP = """\
wanted=@WANTED@
versions() { @PYTHON@ -c "@VERSIONS@" 2>&1 | tail -n 1; }
if [ "$(versions)" != "$wanted" ]; then
    @INSTALL@
    if [ "$(versions)" != "$wanted" ]; then
        echo "monarch: this node has '$(versions)' and the client '$wanted' (Python, monarch-core)" >&2
        exit 4
    fi
fi
"""

# Each node has a folder that only its user can read; several tasks, and in tests several nodes, may be on one machine.
_RUN = """\
umask 077
base=/tmp/monarch-skypilot-$(id -u)
mkdir "$base" 2>/dev/null || true
if [ ! -d "$base" ] || [ -L "$base" ] || [ ! -O "$base" ] || [ "$(stat -c %a "$base")" != 700 ]; then
    echo "monarch: $base is not a private folder of this user" >&2
    exit 73
fi
directory=$base/$SKYPILOT_TASK_ID/$SKYPILOT_NODE_RANK
rm -rf "$directory"
mkdir -p "$directory"
uname -n >"$directory/node"
echo $$ >"$directory/pid"
worker=
end() {
    [ -z "$worker" ] || kill -TERM "$worker" 2>/dev/null || true
    rm -rf "$directory"
    rmdir "$base/$SKYPILOT_TASK_ID" "$base" 2>/dev/null || true
}
trap end EXIT
trap 'exit 143' TERM INT HUP
address=$(printf '%s\\n' "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")
case $address in *:*) address="[$address]" ;; esac
code=75
left=$((@SECRET_WAIT@ * 5))
while :; do
    until [ -s "$directory/secret" ]; do
        if [ "$left" -le 0 ]; then
            [ "$code" != 75 ] || echo "monarch: its client is gone: no secret after @SECRET_WAIT@ s" >&2
            exit "$code"
        fi
        left=$((left - 1))
        sleep 0.2
    done
    rm -f "$directory/exit" "$directory/host.json"
    @PYTHON@ -c 'from monarch.extension.cli import main; main()' worker --listen "tcp://$address:@PORT@" --port-tries @TRIES@ \\
        --secret-file "$directory/secret" --publish "$directory/host.json"@IDLE@ &
    worker=$!
    code=0
    wait "$worker" || code=$?
    worker=
    # A client has shut it down, or no client has used it.
    [ "$code" != 0 ] || exit 0
    rm -f "$directory/secret"
    echo "$code" >"$directory/exit"
    left=$((@RELAUNCH_WAIT@ * 5))
done
"""


_WHEELS = tuple(f"monarch-{name}" for name in ("core", "fs", "jobs", "rdma", "spmd", "telemetry", "tensor"))


def version() -> str:
    """What nodes must have: Python and monarch-core of this client."""
    core = next((found.version for found in distributions(name="monarch-core")), "-")
    return f"{sys.version_info[0]}.{sys.version_info[1]} {core}"


def wants_gpus(resources: dict[str, Any] | None) -> bool:
    """Whether GPUs are asked for, in all alternatives where there are some."""
    if not resources:
        return False
    if resources.get("accelerators"):
        return True
    choices: list[dict[str, Any]] = resources.get("any_of") or resources.get("ordered") or []
    return bool(choices) and all(choice.get("accelerators") for choice in choices)


def task(arguments: SkyPilotArguments) -> dict[str, Any]:
    """The task, as SkyPilot's YAML has it."""
    resources = dict(arguments.resources or {})
    provider = str(resources.get("infra") or resources.get("cloud") or "")
    # SLURM runs images only with a plugin that few clusters have.
    if wants_gpus(resources) and "image_id" not in resources and provider.partition("/")[0] != "slurm":
        resources["image_id"] = GPU_IMAGE
    found: dict[str, Any] = {"num_nodes": sum(arguments.meshes.values())}
    if resources:
        found["resources"] = resources
    if arguments.workdir is not None:
        found["workdir"] = arguments.workdir
    if arguments.file_mounts:
        found["file_mounts"] = dict(arguments.file_mounts)
    if arguments.envs:
        found["envs"] = dict(arguments.envs)
    found["setup"] = _setup(arguments)
    found["run"] = _run(arguments)
    return found


def text(arguments: SkyPilotArguments) -> str:
    """The task as YAML. The comments have the facts that a task has no field for: the meshes, and the end of an idle cluster."""
    lines: list[str] = []
    first = 0
    for name, count in arguments.meshes.items():
        nodes = f"node {first}" if count == 1 else f"nodes {first} to {first + count - 1}"
        lines.append(f"# mesh {json.dumps(name)}: {nodes}\n")
        first += count
    if arguments.idle_minutes_to_autostop is not None:
        verb = "removed" if arguments.down_on_autostop else "stopped"
        lines.append(f"# {verb} after {arguments.idle_minutes_to_autostop} minutes without a task\n")
    return "".join(lines) + _yaml(task(arguments), 0)


def _setup(arguments: SkyPilotArguments) -> str:
    wanted = version()
    core = wanted.split()[1]
    python = shlex.quote(arguments.python_exe)
    # A checkout that was not installed has no version that an index could provide.
    install = ":" if core == "-" else f"{python} -m pip install --quiet {' '.join(map(shlex.quote, _wheels()))}"
    values = {"WANTED": shlex.quote(wanted), "PYTHON": python, "VERSIONS": VERSIONS, "INSTALL": install}
    own = "" if arguments.setup_commands is None else arguments.setup_commands.rstrip("\n") + "\n"
    return own + _filled(_SETUP, values)


def _wheels() -> list[str]:
    """The client's wheels and their versions: mounts, telemetry and others have processes on the hosts."""
    found = {wheel: next((one.version for one in distributions(name=wheel)), "") for wheel in _WHEELS}
    found["monarch-jobs"] = found["monarch-jobs"] or version().split()[1]
    return [f"{wheel}=={release}" for wheel, release in found.items() if release]


def _run(arguments: SkyPilotArguments) -> str:
    minutes = arguments.idle_minutes_to_autostop
    values = {
        "PYTHON": shlex.quote(arguments.python_exe),
        "PORT": str(arguments.monarch_port),
        "TRIES": str(PORT_TRIES),
        "SECRET_WAIT": str(SECRET_WAIT_S),
        "RELAUNCH_WAIT": str(RELAUNCH_WAIT_S),
        # A cluster is idle when its task is over: workers without a client have to end.
        "IDLE": "" if minutes is None else f" --idle-timeout {max(minutes, 1) * 60}",
    }
    return _filled(_RUN, values)


def _filled(script: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda found: values.get(found[1], found[0]), script)


_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def _yaml(value: dict[str, Any], depth: int) -> str:
    """A mapping as YAML; scripts are blocks, other text is plain where no reader could take it for something else."""
    pad = "  " * depth
    lines: list[str] = []
    for key, item in value.items():
        name = _scalar(key)
        if isinstance(item, dict) and item:
            lines.append(f"{pad}{name}:\n{_yaml(item, depth + 1)}")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(item, str) and _is_block(item):
            body = "".join(f"{pad}  {line}".rstrip() + "\n" for line in item[:-1].split("\n"))
            lines.append(f"{pad}{name}: |\n{body}")
        else:
            lines.append(f"{pad}{name}: {_scalar(item)}\n")
    return "".join(lines)


def _is_block(item: str) -> bool:
    """Whether a block gives exactly this text back."""
    lines = item[:-1].split("\n")
    return (
        item.endswith("\n") and bool(lines[0].strip()) and not lines[0].startswith(" ") and bool(lines[-1].strip())
        and all(line == line.rstrip() and "\t" not in line[:1] for line in lines) and item.isprintable() is False
        and all(character.isprintable() or character in "\n\t" for character in item)
    )  # fmt: skip


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # Every JSON text is YAML.
    return json.dumps(value, ensure_ascii=False)
