"""The package `monarch` with the top-level names of torchmonarch 0.7, each an alias of a public name of this project.

It needs nothing until a name is used: no module of another wheel is imported here. What always holds: the portions of the other wheels stay
importable, those in other folders as well, because the package path has the folder `monarch` of each entry of `sys.path`. Each name warns
once (`DeprecationWarning`) and names its new home; a name without a home raises `ImportError` with what to write instead.
"""

from __future__ import annotations

from . import _old_paths

_old_paths.extend(__path__)


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module 'monarch' has no attribute {name!r}")
    from ._old_modules.modules import value

    return value("monarch", name)


def __dir__() -> list[str]:
    from ._old_modules.modules import names

    return sorted({*globals(), *names("monarch")})
