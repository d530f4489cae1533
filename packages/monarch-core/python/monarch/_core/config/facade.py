"""A facade: a package of public names, each of which is loaded with its first use (PEP 562), so that importing the package is cheap."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def lazy_names(
    facade: str, homes: Mapping[str, Iterable[str]], package: str = "", modules: Iterable[str] = (), hidden: Iterable[str] = ()
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a facade.

    `homes` has the names of each module of `package`, by default of the facade; `modules` are names of submodules, and `hidden` those of
    submodules that `dir` does not list.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    submodules = {*modules, *hidden}
    listed = sorted({*home_of, *modules})

    def load(name: str) -> object:
        from importlib import import_module

        home = home_of.get(name)
        if home is not None:
            found: object = getattr(import_module(f"{package or facade}.{home}"), name)
        elif name in submodules:
            found = import_module(f"{facade}.{name}")
        else:
            raise AttributeError(f"module '{facade}' has no attribute {name!r}")
        vars(sys.modules[facade])[name] = found
        return found

    return listed, load, listed.copy
