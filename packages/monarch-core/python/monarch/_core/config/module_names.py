"""The names of modules, as arguments and settings give them."""

from __future__ import annotations


def checked_modules(names: object) -> list[str]:
    """The names of modules that procs are to find imported, each once.

    Args:
        names: an iterable of names, such as `["torch", "numpy.linalg"]`.

    Raises:
        TypeError: a single name, or a value that is no name.
        ValueError: a text that is no name of a module.

    >>> checked_modules(["json", "json"])
    ['json']
    """
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        raise TypeError(f"preload={names!r}: expected a list of names of modules, like ['torch']")
    found: dict[str, None] = {}
    found_names: list[object] = list(names)  # type: ignore[call-overload]  # pyright: ignore
    for name in found_names:
        if not isinstance(name, str):
            raise TypeError(f"preload: {name!r} is no name of a module, but of type {type(name).__name__}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload: {name!r} is no name of a module")
        found[name] = None
    return list(found)
