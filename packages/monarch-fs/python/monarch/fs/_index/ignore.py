"""What `.gitignore` files leave out of a tree (`gitignore=True`), by the rules of code sync.

The rules belong to core, which has them in `monarch.extension.gitignore`. A core without that module has no rules for other wheels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol


class Ignored(Protocol):
    """The rules that hold in one directory."""

    @property
    def key(self) -> bytes:
        """Equal for equal rules."""
        ...

    def leaves_out(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Whether a path, relative to the source, is left out; its directory is not."""
        ...


def rules_of_source(top: bytes) -> Ignored:
    """The rules of the git work tree that a directory is in; none outside of one. `ValueError` if core has no rules."""
    return _module().rules_above(top)


def rules_below(text: bytes, directory: bytes, above: Ignored) -> Ignored:
    """The rules in a directory with a `.gitignore` of this text; `directory` ends with a slash unless it is the source."""
    module = _module()
    return module.RuleChain(module.Rules(text), directory, above)


def _module() -> Any:
    try:
        return import_module("monarch.extension.gitignore")
    except ImportError:
        raise ValueError("gitignore=True: this version of monarch-core has no rules of git for other wheels") from None
