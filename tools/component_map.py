"""The components of the project and their dependencies, drawn from the code: a picture for ARCHITECTURE.md, and docs/components.md.

    python -m tools.component_map --picture   the picture of all components
    python -m tools.component_map             the page with each crate and each package

| component | dependencies |
|---|---|
| a crate | the dependencies in its `Cargo.toml`, without those of tests |
| a file or folder of a crate's `src` | paths in `use` declarations and in code, without those of tests |
| a package of a wheel, a file or folder of a package | `import` statements, those inside of functions too |

An arrow leads from a component to one that it uses. An arrow that other arrows imply is left out: if A uses B and B uses C, no arrow leads
from A to C. Components that use each other in a circle keep all arrows among them. The tables of the page have every dependency, and mark
those that only type checkers follow.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import grimp

from tools.project import PACKAGES, ROOT, RUST
from tools.structure import circles, python_packages, rust_graph

Graph = dict[str, set[str]]
# Packages of core with public names only, and the package that implements them.
_FACADES = ("monarch.actor", "monarch.config", "monarch.extension")
_CORE = "monarch._core"
# A folder of Rust modules with more files has a drawing of its own.
_FILES = 6


class Component(NamedTuple):
    """A row of the page: a file or folder of a package or crate."""

    name: str
    does: str
    uses: set[str]
    # Components that it uses in annotations only.
    types: set[str]


# ---- graphs


def folded(graph: Mapping[str, set[str]], component: Mapping[str, str]) -> Graph:
    """The graph between components; `component` has the component of each module, and modules without one are left out."""
    found: Graph = {name: set() for name in component.values()}
    for module, others in graph.items():
        if module in component:
            found[component[module]] |= {component[other] for other in others if other in component} - {component[module]}
    return found


def arrows(graph: Mapping[str, set[str]]) -> list[tuple[str, str, str]]:
    """The arrows of a drawing, as source, arrow and target: the transitive reduction of the graph, with all arrows within circles."""
    circle = {node: index for index, members in enumerate(circles(graph)) for node in members}
    part = {node: f"circle {circle[node]}" if node in circle else node for node in graph}
    between = folded(graph, part)
    found: list[tuple[str, str, str]] = []
    drawn: set[tuple[str, str]] = set()
    for node in sorted(graph):
        for other in sorted(graph[node]):
            if part[node] == part[other]:
                both = node in graph[other]
                if not both or node < other:
                    found.append((node, "<-->" if both else "-->", other))
            elif (part[node], part[other]) not in drawn and not _implied(between, part[node], part[other]):
                drawn.add((part[node], part[other]))
                found.append((node, "-->", other))
    return found


def _implied(graph: Graph, node: str, other: str) -> bool:
    """Whether a path of two or more steps leads from one node of a graph without circles to another."""
    seen: set[str] = set()
    todo = [next_ for next_ in graph[node] if next_ != other]
    while todo:
        at = todo.pop()
        if at == other:
            return True
        if at not in seen:
            seen.add(at)
            todo += graph[at]
    return False


# ---- Rust


def crates() -> list[str]:
    """The crates, the highest first: a crate uses only crates after it."""
    graph = {name: crate_uses(name) for name in _crate_names()}
    order: list[str] = []
    while len(order) < len(graph):
        order += sorted(name for name in graph if name not in order and not any(name in graph[one] for one in graph if one not in order))
    return order


@functools.cache
def _crate_names() -> tuple[str, ...]:
    return tuple(sorted(path.parents[1].name for path in RUST.glob("*/src/lib.rs")))


def crate_uses(crate: str) -> set[str]:
    """The crates of this workspace that a crate depends on, other than in its tests."""
    declared = tomllib.loads((RUST / crate / "Cargo.toml").read_text(encoding="utf-8")).get("dependencies", {})
    return set(_crate_names()) & declared.keys()


def crate_components(crate: str) -> list[Component]:
    """The files and folders of the `src` of a crate."""
    return _rust_components(RUST / crate / "src", "crate")


def rust_folders(crate: str) -> list[str]:
    """The folders of modules of a crate that have a drawing of their own."""
    found = (RUST / crate / "src").rglob("mod.rs")
    return sorted(
        path.parent.relative_to(RUST / crate / "src").as_posix() for path in found if len(list(path.parent.glob("*.rs"))) > _FILES
    )


def folder_modules(crate: str, folder: str) -> list[Component]:
    """The files of a folder of modules."""
    return _rust_components(RUST / crate / "src", "::".join(("crate", *folder.split("/"))))


def _rust_components(source: Path, parent: str) -> list[Component]:
    graph = _rust_graph(source)
    depth = parent.count("::") + 2
    component = {module: "::".join(module.split("::")[:depth]) for module in graph if module.startswith(f"{parent}::")}
    uses = folded(graph, component)
    return [
        Component(_last(name), sentence(rust_doc(source.joinpath(*name.split("::")[1:]))), {_last(one) for one in uses[name]}, set())
        for name in sorted(uses)
    ]


_rust_graph = functools.cache(rust_graph)


def _last(module: str) -> str:
    return module.rpartition("::")[2]


def rust_doc(stem: Path) -> str:
    """The documentation of a module: of `stem.rs`, or of the folder `stem`."""
    path = next(path for path in (stem.with_suffix(".rs"), stem / "mod.rs", stem / "lib.rs") if path.exists())
    return "\n".join(line[3:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("//!"))


# ---- Python


@functools.cache
def _python_graphs() -> tuple[Graph, Graph]:
    """The imports between all modules of all wheels: those that are executed, and those for types too."""
    names = python_packages()

    def modules(without_types: bool) -> Graph:
        graph = grimp.build_graph(*names, exclude_type_checking_imports=without_types, cache_dir=None)
        return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}

    return modules(True), modules(False)


def folders() -> list[str]:
    """The packages with a drawing of their own: those with subpackages, and the highest package of each wheel."""
    modules = _python_graphs()[0]
    of_wheels = [name for name in python_packages() if len([one for one in modules if one.startswith(f"{name}.")]) > 1]
    nested = {name.rpartition(".")[0] for name in modules if _path(name).is_dir()}
    return sorted({*of_wheels, *nested} - {"monarch", *_FACADES})


def folder_components(package: str) -> list[Component]:
    """The files and subpackages of a package; the package itself is a table of contents."""
    executed, all_imports = _python_graphs()
    depth = package.count(".") + 2
    component = {module: ".".join(module.split(".")[:depth]) for module in executed if module.startswith(f"{package}.")}
    uses, with_types = folded(executed, component), folded(all_imports, component)
    return [Component(name, sentence(_python_doc(name)), uses[name], with_types[name] - uses[name]) for name in sorted(uses)]


def _path(module: str) -> Path:
    """The file of a module, or the folder of a package."""
    stem = Path(*module.split("."))
    found = [path for wheel in sorted(PACKAGES.glob("*/python")) for path in (wheel / stem, wheel / stem.with_suffix(".py"))]
    return next(path for path in found if path.exists())


def _python_doc(module: str) -> str:
    path = _path(module)
    path = path / "__init__.py" if path.is_dir() else path
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") if path.exists() else ""


def sentence(doc: str) -> str:
    """The first sentence of a doc, as the cell of a table."""
    first = " ".join(doc.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", first)[0].replace("|", "\\|")


# ---- text


def _wheel_graph() -> Graph:
    """The imports between the wheels' packages; those of core's facades and of its implementation are drawn by themselves."""
    graph = _python_graphs()[0]
    top = {module: ".".join(module.split(".")[:2]) for module in graph}
    wheel = {name: _wheel(name) for name in set(top.values())}
    return folded(graph, {module: wheel[name] for module, name in top.items() if name != _CORE})


def _wheel(package: str) -> str:
    """The node of a package: a facade of core, or the wheel that the package is a part of."""
    return package if package in _FACADES else _path(package).relative_to(PACKAGES).parts[0]


def _node(name: str) -> str:
    """The name of a node in the drawing; `n_` keeps it apart from the keywords of Mermaid."""
    return "n_" + re.sub(r"\W", "_", name)


def _drawn(graph: Mapping[str, set[str]], label: Mapping[str, str] | None = None, prefix: str = "") -> list[str]:
    """The nodes and arrows of a graph; nodes are called by their label."""
    nodes = [f'{_node(prefix + name)}["{(label or {}).get(name, name)}"]' for name in sorted(graph)]
    return [*nodes, *(f"{_node(prefix + a)} {arrow} {_node(prefix + b)}" for a, arrow, b in arrows(graph))]


def _group(name: str, title: str, lines: Iterable[str]) -> list[str]:
    return [f'subgraph {name}["{title}"]', *(f"    {line}" for line in lines), "end"]


def _mermaid(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", "flowchart TD", *(f"    {line}" for line in lines), "```"]) + "\n"


def picture() -> str:
    """All components of the project, and who uses whom."""
    wheels = _wheel_graph()
    core = {one.name: one.uses for one in folder_components(_CORE)}
    runtime = {one.name: one.uses for one in crate_components("runtime")}
    rest = {name: crate_uses(name) for name in crates()}
    lines = [
        *_group("wheels", "other wheels", (f'{_node(name)}["{name}"]' for name in sorted(wheels.keys() - set(_FACADES)))),
        *_group("public", "monarch-core: public names", (f'{_node(name)}["{name}"]' for name in _FACADES)),
        *_group("python", "monarch-core: monarch._core", _drawn(core, {name: name.removeprefix(f"{_CORE}.") for name in core})),
        *_group(_node("runtime"), "monarch-core: crate runtime", _drawn(runtime, prefix="runtime::")),
        *(f'{_node(name)}["crate {name}"]' for name in rest if name != "runtime"),
        *(f"{_node(a)} {arrow} {_node(b)}" for a, arrow, b in (*arrows(wheels), *arrows(rest))),
        "public --> python",
        f"python --> {_node('bridge')}",
    ]
    return _mermaid(lines)


def page() -> str:
    """The text of docs/components.md."""
    parts = [_PAGE]
    for crate in crates():
        doc = sentence(rust_doc(RUST / crate / "src"))
        used = ", ".join(f"`{name}`" for name in sorted(crate_uses(crate)))
        uses = f" Uses {used}." if used else " Uses no other crate."
        parts.append(_section(f"Rust: `{crate}`", doc + uses, f"{crate}::", crate_components(crate)))
        for folder in rust_folders(crate):
            name = "::".join((crate, *folder.split("/")))
            parts.append(_section(f"Rust: `{name}`", sentence(rust_doc(RUST / crate / "src" / folder)), "", folder_modules(crate, folder)))
    for package in folders():
        parts.append(
            _section(f"Python: `{package}`", sentence(_python_doc(package)) or _NAMESPACE, f"{package}.", folder_components(package))
        )
    return "\n".join(parts)


_PAGE = """# Components

The components of each crate and of each package, and their dependencies, from the code. [ARCHITECTURE.md](../ARCHITECTURE.md) has the
picture of the whole. An arrow leads from a component to one that it uses; an arrow that other arrows imply is left out. The tables have
all dependencies, without those on the file of the crate, folder or package itself (`lib.rs`, `mod.rs`, `__init__.py`). The column
"for types" lists components that only annotations name. The sentence of each component is the first one of its own documentation, which
describes the rest: the docstring of a Python file, the first lines of a Rust file or folder.
"""
_NAMESPACE = "The implementation of core, which other wheels do not import."


def _section(title: str, doc: str, prefix: str, components: list[Component]) -> str:
    short = {one.name: one.name.removeprefix(prefix) for one in components}
    graph = {one.name: one.uses for one in components}
    drawing = _mermaid(_drawn(graph, short)) + "\n" if any(graph.values()) else ""
    heads = ["component", "what it does", "uses", *(["for types"] if any(one.types for one in components) else [])]
    rows = [heads, ["---"] * len(heads)]
    rows += [[f"`{short[one.name]}`", one.does, _listed(one.uses, short), _listed(one.types, short)][: len(heads)] for one in components]
    return f"## {title}\n\n{doc}\n\n{drawing}" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _listed(names: set[str], short: Mapping[str, str]) -> str:
    return ", ".join(f"`{short[name]}`" for name in sorted(names))


# ---- in the process of tools.generate_docs, which has stand-ins for packages that need PyTorch


@functools.cache
def _made() -> dict[str, str]:
    argv = [sys.executable, "-m", "tools.component_map", "--json"]
    return json.loads(subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def picture_of_a_process() -> str:
    """The picture, made in a process of its own."""
    return _made()["picture"]


def page_of_a_process() -> str:
    """The page, made in a process of its own."""
    return _made()["page"]


def main(arguments: list[str]) -> int:
    if arguments == ["--json"]:
        print(json.dumps({"picture": picture(), "page": page()}))
    elif arguments in ([], ["--picture"]):
        print(picture() if arguments else page(), end="")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
