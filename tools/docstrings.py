"""The examples of docstrings, and the sections that the docstrings of the names that users meet first must have.

A docstring of Python in a wheel may have blocks ```python: `tools.check_docs` runs each docstring's blocks as one script in a process of
its own. `FIRST` lists public names whose docstrings have an example, and for a function `Args:`, `Returns:` and `Raises:`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.code_blocks import script
from tools.project import PACKAGES

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

FIRST = (
    "monarch.actor.Accumulator",
    "monarch.actor.Actor",
    "monarch.actor.ActorMesh",
    "monarch.actor.ActorMesh.stop",
    "monarch.actor.as_endpoint",
    "monarch.actor.attach_to_workers",
    "monarch.actor.Channel",
    "monarch.actor.Channel.open",
    "monarch.actor.context",
    "monarch.actor.current_rank",
    "monarch.actor.current_size",
    "monarch.actor.endpoint",
    "monarch.actor.Endpoint.broadcast",
    "monarch.actor.Endpoint.call",
    "monarch.actor.Endpoint.call_one",
    "monarch.actor.Endpoint.choose",
    "monarch.actor.Endpoint.stream",
    "monarch.actor.Future",
    "monarch.actor.Future.exception",
    "monarch.actor.Future.get",
    "monarch.actor.get_or_spawn_controller",
    "monarch.actor.HostMesh",
    "monarch.actor.HostMesh.shutdown",
    "monarch.actor.HostMesh.spawn_procs",
    "monarch.actor.MeshTrait.size",
    "monarch.actor.MeshTrait.slice",
    "monarch.actor.Port",
    "monarch.actor.Port.send",
    "monarch.actor.PortReceiver.recv",
    "monarch.actor.ProcMesh",
    "monarch.actor.ProcMesh.spawn",
    "monarch.actor.ProcMesh.stop",
    "monarch.actor.recovery.Replicas",
    "monarch.actor.shutdown_context",
    "monarch.actor.start_worker_loop_forever",
    "monarch.actor.SupervisionError",
    "monarch.actor.testing.fault",
    "monarch.actor.testing.local_hosts",
    "monarch.actor.this_host",
    "monarch.actor.this_proc",
    "monarch.actor.unhandled_fault_hook",
    "monarch.actor.ValueMesh",
    "monarch.actor.ValueMesh.item",
    "monarch.actor.Workspace",
    "monarch.config.configure",
    "monarch.fs.mount",
    "monarch.fs.push",
    "monarch.job.JobTrait",
    "monarch.job.kubernetes.KubernetesJob",
    "monarch.job.LocalJob",
    "monarch.job.ProcessJob",
    "monarch.job.SlurmJob",
    "monarch.job.SSHJob",
    "monarch.rdma.RDMAAction",
    "monarch.rdma.RDMABuffer",
    "monarch.rdma.RDMABuffer.read_into",
    "monarch.rdma.RDMABuffer.write_from",
    "monarch.spmd.RestartPolicy",
    "monarch.spmd.run",
    "monarch.spmd.Snapshots",
    "monarch.telemetry.query",
    "monarch.telemetry.record",
    "monarch.telemetry.start",
    "monarch.tensor.DeviceMesh",
    "monarch.tensor.fetch_shard",
    "monarch.tensor.inspect",
    "monarch.tensor.reduce",
    "monarch.tensor.remote",
    "monarch.tensor.to_mesh",
)
# Functions that raise no error of their own.
NO_ERRORS = frozenset({"monarch.actor.current_rank", "monarch.actor.current_size", "monarch.telemetry.record"})


class Example(NamedTuple):
    """The code of one docstring."""

    name: str
    line: int
    code: str


def sources() -> list[Path]:
    """The Python files of the wheels whose docstrings have code that runs."""
    return [
        path for path in sorted(PACKAGES.glob("*/python/**/*.py")) if "```python" in path.read_text(encoding="utf-8") and examples(path)
    ]


def examples(path: Path) -> list[Example]:
    """The code of each docstring of a file that has some."""
    found: list[Example] = []
    for name, node in _documented(ast.parse(path.read_text(encoding="utf-8"))):
        if code := script(ast.get_docstring(node) or ""):
            found.append(Example(name, node.lineno, code))
    return found


def _documented(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Documented]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from _documented(node, f"{prefix}{node.name}.")


def definition(name: str) -> Documented:
    """The definition of a public name such as `monarch.actor.Endpoint.call`, by the imports of its facade."""
    parts = name.split(".")
    at = next(at for at, part in enumerate(parts) if part[0].isupper() or at == len(parts) - 1)
    path, home = _home(".".join(parts[:at]), parts[at])
    rest = parts[at + 1 :]
    found = [node for named, node in _documented(ast.parse(path.read_text(encoding="utf-8"))) if named == ".".join((home, *rest))]
    if not found:
        raise LookupError(f"{path} does not define {name}")
    return found[-1]  # an implementation follows its overloads


def _home(module: str, name: str) -> tuple[Path, str]:
    """The file that defines a name of a module, and its name there."""
    while True:
        path = _file(module)
        imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and not node.level
            for alias in node.names
        }
        if name not in imported:
            return path, name
        module, name = imported[name]


def _file(module: str) -> Path:
    place = module.replace(".", "/")
    for pattern in (f"*/python/{place}.py", f"*/python/{place}/__init__.py"):
        for path in PACKAGES.glob(pattern):
            return path
    raise LookupError(f"no wheel has {module}")


def problems(name: str, node: Documented) -> list[str]:
    """The parts that the docstring of a name lacks."""
    text = ast.get_docstring(node) or ""
    found = [] if script(text) else ["has no example that runs"]
    sections = _sections(text)
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        if made and "Args" in sections:
            found += _arguments(made[0], sections["Args"])
        return found
    if parameters := _parameters(node):
        found += _arguments(node, sections["Args"]) if "Args" in sections else [f"has no Args: {', '.join(parameters)}"]
    given = ast.unparse(node.returns) if node.returns else ""
    if given not in ("None", "NoReturn", "Never") and "Returns" not in sections and "Yields" not in sections:
        found.append("has no Returns")
    if (name in NO_ERRORS) == ("Raises" in sections):
        found.append("has Raises and is in NO_ERRORS" if name in NO_ERRORS else "has no Raises")
    return found


def _sections(text: str) -> dict[str, str]:
    parts = re.split(r"^(Args|Returns|Yields|Raises):\n", text, flags=re.MULTILINE)
    return {title: re.split(r"^\S", body, maxsplit=1, flags=re.MULTILINE)[0] for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = node.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef, section: str) -> list[str]:
    stated = {name.strip() for names in re.findall(r"^    ([\w*, ]+):", section, re.MULTILINE) for name in names.split(",")}
    return [f"does not state {name}" for name in _parameters(node) if name not in stated]
