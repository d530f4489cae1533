"""Modules whose source files have changed since this process imported them, and their reload.

In a proc every import of a source file records the file's mtime and size at that time. Later comparisons use this record, so a
module that was imported after the change is left alone. Changed modules are reloaded in an order in which a module comes after the changed
modules that it imports, according to the new source; the order of their first import would miss new imports.

Reloading is Python's `importlib.reload`: the module's code runs again in the same module object. References that other code has taken from
it before, by `from m import f` or as the class of an instance, do not change.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

# The mtime and size of imported source files, as the import system saw them.
_imported: dict[str, tuple[float, int]] = {}


def watch_imports() -> None:
    """Records all imports from now on; called once per process."""
    from importlib.machinery import SourceFileLoader

    original: Callable[..., Any] = SourceFileLoader.path_stats
    if getattr(original, "remembers", False):
        return

    def path_stats(self: Any, path: str) -> Any:
        found = original(self, path)
        _imported[path] = (found["mtime"], found["size"])
        return found

    path_stats.remembers = True  # pyright: ignore[reportFunctionMemberAccess]
    SourceFileLoader.path_stats = path_stats  # pyright: ignore[reportAttributeAccessIssue]


def changed_modules(tops: Iterable[str]) -> dict[str, ModuleType]:
    """Modules below these directories whose files have changed since the import, in the order in which their imports ended."""
    places = tuple(os.path.join(top, "") for top in tops)
    found: dict[str, ModuleType] = {}
    for name, module in list(sys.modules.items()):
        # The modules of Monarch run this code.
        if name == "__main__" or name.partition(".")[0] == "monarch":
            continue
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        if not isinstance(file, str) or not file.startswith(places):
            continue
        before = _imported.get(file)
        try:
            st = os.stat(file)
        except OSError:  # the file was deleted: the loaded module stays
            continue
        if before is not None and (st.st_mtime, st.st_size) != before:
            found[name] = module
    return found


def in_order(modules: dict[str, ModuleType]) -> list[str]:
    """The names, each after the other ones that its code imports when it runs; in a cycle, in the order of their first import."""
    before = {name: {i for i in _imports(module) if i in modules and i != name} for name, module in modules.items()}
    order: list[str] = []
    while before:
        name = next((name for name, imported in before.items() if not imported), None)
        if name is None:
            name = next(iter(before))
        del before[name]
        order.append(name)
        for imported in before.values():
            imported.discard(name)
    return order


def _imports(module: ModuleType) -> list[str]:
    """Full names of the modules that a module imports outside functions; none if its source cannot be read or parsed."""
    import ast

    spec: Any = module.__spec__
    try:
        with open(spec.origin, "rb") as f:
            tree = ast.parse(f.read())
    except (OSError, SyntaxError, ValueError):
        return []
    package: str = spec.parent or ""
    found: list[str] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                found += [".".join(parts[: i + 1]) for i in range(len(parts))]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                above = ".".join(parents[: len(parents) - node.level + 1])
                base = f"{above}.{base}" if base else above
            found.append(base)
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def reload_changed(tops: Iterable[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Reloads changed modules; gives the names of reloaded modules, and of failed ones with the packed exception."""
    import importlib

    importlib.invalidate_caches()
    modules = changed_modules(tops)
    reloaded: list[str] = []
    failed: list[tuple[str, Any]] = []
    for name in in_order(modules):
        module = modules[name]
        if sys.modules.get(name) is not module:  # another module has replaced it
            continue
        spec: Any = module.__spec__
        before = _imported[spec.origin]
        _forget_compiled(spec.cached)
        try:
            importlib.reload(module)
        except BaseException as e:
            # The old record makes the next sync try again.
            _imported[spec.origin] = before
            from monarch._core.pickle.remote_exception import pack_exception

            failed.append((name, pack_exception(e)))
        else:
            reloaded.append(name)
    linecache = sys.modules.get("linecache")
    if linecache is not None and (reloaded or failed):
        linecache.checkcache()
    return reloaded, failed


def _forget_compiled(cached: Any) -> None:
    """Removes compiled code. Python treats it as current if size and whole seconds agree, which an edit may leave unchanged."""
    if isinstance(cached, str):
        try:
            os.unlink(cached)
        except OSError:
            return
