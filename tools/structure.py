"""Numbers of the structure, as a table for CONTRIBUTING.md: circles of modules, the spread of one type, and the length of the maps.

    python -m tools.structure             the table
    python -m tools.structure --circles   the members of each circle too

| number | how it is measured |
|---|---|
| circle of modules | modules of a crate, or of a package, each of which reaches all others by imports; imports for types count too |
| uses of private attributes | places where Python reads or sets `x._name` outside of a class that defines `_name` |
| files that implement a type | files with an `impl` block of one type of the crate |
| words of a map | words of a page, or of all pages of a folder, outside of code blocks |
| entries of the glossary | terms; the style check refuses more than 100 |
| rows of the longest page | failures of one page of `docs/failures`; the style check refuses more than 60 |

A number may fall, and the table is then written anew. The step `generated` refuses a number that is higher than that of the table.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

from tools.project import PACKAGES, ROOT, RUST
from tools.style import glossary, prose, references, rust

MAPS = ("ARCHITECTURE.md", "docs/failures", "docs/glossary.md")
_USE = re.compile(r"\buse\s+(?P<tree>[^;]+);")
_PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
_IMPL = re.compile(r"^\s*(?:unsafe\s+)?impl\b(?:<[^{]*?>)?\s+(?:[^{;]*?\bfor\s+)?(?:\w+::)*(?P<type>[A-Z]\w*)", re.MULTILINE)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one node, largest first: Tarjan's algorithm, SIAM J. Comput. 1 (1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=lambda members: (-len(members), members))


# ---- Python

_SELF = ("self", "cls", "super()")
# The module with the names of PyTorch that have no public form.
_FOREIGN = "torch_internals.py"
# Names that Python has for all code: those of named tuples, of `os` and of `sys` in its documentation, and those in `__all__` of
# `asyncio.events`.
_DOCUMENTED = frozenset(
    {"_asdict", "_current_frames", "_exit", "_fields", "_get_running_loop", "_getframe", "_make", "_replace", "_set_running_loop"}
)


def python_graph(package: str) -> dict[str, set[str]]:
    """The imports between the modules of a package, those for types and those inside of functions too."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def python_packages() -> list[str]:
    """The packages right under the namespace, of all wheels but monarch-compat.

    Its `monarch/__init__.py` would make the namespace a package, in which the graph finds no portions; and it imports by its tables only.
    """
    wheels = [folder for folder in PACKAGES.glob("*/python/monarch") if not (folder / "__init__.py").exists()]
    found = sorted(path for folder in wheels for path in folder.iterdir() if any(path.rglob("*.py")))
    sys.path[:0] = sorted({str(path.parents[1]) for path in found} - set(sys.path))
    return [f"monarch.{path.name}" for path in found if path.is_dir()]


def private_uses(source: str) -> int:
    """The uses of private attributes outside of the classes that define them. A class uses its own, also those of another instance."""
    return sum(1 for _ in _private(ast.parse(source), _DOCUMENTED))


def _private(node: ast.AST, own: frozenset[str]) -> Iterable[ast.Attribute]:
    if isinstance(node, ast.ClassDef):
        own |= frozenset(_defined(node))
    if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
        if node.attr not in own and ast.unparse(node.value) not in _SELF:
            yield node
    for child in ast.iter_child_nodes(node):
        yield from _private(child, own)


def _defined(body: ast.ClassDef) -> Iterable[str]:
    """The names of the class: its methods, the names of its body, its slots, and what its methods set."""
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in _SELF:
            yield node.attr
        elif isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets):
            yield from (str(value.value) for value in ast.walk(node.value) if isinstance(value, ast.Constant))


# ---- Rust


def rust_graph(source: Path) -> dict[str, set[str]]:
    """The modules of a crate, and those that each names by a path from `crate`, `super` or `self`."""
    texts = {_module(path.relative_to(source)): rust.without_tests(rust.blank(path.read_text())) for path in sorted(source.rglob("*.rs"))}
    return {name: {_nearest(texts, named) for named in _named(name, text)} - {name} for name, text in texts.items()}


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return "::".join(("crate", *(parts[:-1] if parts[-1] in ("mod", "lib") else parts)))


def _named(module: str, text: str) -> Iterable[str]:
    trees = [leaf for use in _USE.finditer(text) for leaf in _leaves(re.sub(r"\s+", "", use["tree"].replace(" as ", "@")))]
    for path in [*trees, *(found[0] for found in _PATH.finditer(text))]:
        first, *rest = path.split("::")
        if first == "crate":
            yield path
        elif first in ("self", "super"):
            at = module.split("::")
            while rest and first == "super":
                at = at[:-1]
                if rest[0] != "super":
                    break
                first, *rest = rest
            yield "::".join([*at, *rest])


def _leaves(tree: str) -> list[str]:
    """The paths of a tree of `use`."""
    head, brace, inner = tree.partition("{")
    if not brace:
        return [tree.split("@")[0]]
    depth, start, parts = 0, 0, list[str]()
    inner = inner[: inner.rindex("}")]
    for at, character in enumerate(f"{inner},"):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(inner[start:at])
            start = at + 1
    return [f"{head}{leaf}" for part in parts if part for leaf in _leaves(part)]


def _nearest(modules: Mapping[str, object], path: str) -> str:
    """The module that a path is in: the longest beginning that is one."""
    parts = path.split("::")
    return next(("::".join(parts[:n]) for n in range(len(parts), 0, -1) if "::".join(parts[:n]) in modules), "crate")


def spread(source: Path) -> tuple[str, int]:
    """The type of a crate that most files implement a part of, and how many do."""
    counted: Counter[str] = Counter()
    for path in source.rglob("*.rs"):
        counted.update({found["type"] for found in _IMPL.finditer(rust.without_tests(rust.blank(path.read_text())))})
    return max(counted.items(), key=lambda item: (item[1], item[0]), default=("", 0))


# ---- pages


def words(name: str) -> int:
    """The words of a page, or of the pages of a folder, outside of code blocks."""
    pages = sorted((ROOT / name).glob("*.md")) or [ROOT / name]
    return sum(len(prose.without_fences(page.read_text()).split()) for page in pages)


# ---- the table


def rows() -> dict[str, int]:
    """Each number by what it counts."""
    found: dict[str, int] = {}
    for crate in sorted(path.parent.name for path in RUST.glob("*/Cargo.toml")):
        source = RUST / crate / "src"
        if source.is_dir() and any(source.iterdir()):
            largest = circles(rust_graph(source))[:1]
            found[f"largest circle of modules, Rust, `{crate}`"] = len(largest[0]) if largest else 0
            name, count = spread(source)
            if count > 1:
                found[f"files that implement one type, Rust, `{crate}` (`{name}`)"] = count
    for package in python_packages():
        largest = circles(python_graph(package))[:1]
        if largest:
            found[f"largest circle of modules, Python, `{package}`"] = len(largest[0])
    for wheel in sorted(path for path in PACKAGES.iterdir() if any(path.glob("python/**/*.py"))):
        count = sum(private_uses(path.read_text()) for path in wheel.glob("python/**/*.py") if path.name != _FOREIGN)
        found[f"uses of private attributes of other objects, Python, `{wheel.name}`"] = count
    found |= {f"words, `{page}`": words(page) for page in MAPS}
    pages = (ROOT / references.FAILURES).glob("*.md")
    found[f"rows of the longest page, `{references.FAILURES}`"] = max(len(list(references.rows(page.read_text()))) for page in pages)
    found[f"entries, `{glossary.GLOSSARY}`"] = len(list(glossary.entries((ROOT / glossary.GLOSSARY).read_text())))
    return found


def table() -> str:
    """The table as Markdown."""
    return "".join(["| number | now |\n|---|---|\n", *(f"| {name} | {count:,} |\n" for name, count in rows().items())])


def table_of_a_process() -> str:
    """The table, made in a process of its own: that of `tools.generate_docs` has stand-ins for packages that need PyTorch."""
    return subprocess.run([sys.executable, "-m", "tools.structure"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def is_current(old: str, new: str) -> bool:
    """Whether no number of the new table is higher than in the old one, or missing there."""
    before, after = _read(old), _read(new)
    return all(count <= before.get(name, 0) for name, count in after.items())


def _read(text: str) -> dict[str, int]:
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:])
    return {row[0]: int(row[1].replace(",", "")) for row in cells if len(row) == 2}


def main(arguments: list[str]) -> int:
    if arguments == ["--circles"]:
        for source in sorted(RUST.glob("*/src")):
            for members in circles(rust_graph(source)):
                print(f"{source.parent.name}: {len(members)}: {', '.join(members)}")
        for package in python_packages():
            for members in circles(python_graph(package)):
                print(f"{package}: {len(members)}: {', '.join(members)}")
    elif arguments:
        print(__doc__, file=sys.stderr)
        return 2
    print(table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
