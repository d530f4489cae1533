"""Describes the public names of a module as text: one line per name or member, with its signature.

The text is for users and reviewers, so it depends neither on the place of a definition nor on the version of
Python: annotations are taken as written, defaults that print an address are cut, and members of a base class count as the class's own.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

from monarch._core.call.foreign_names import ForeignName
from monarch.actor import EndpointProperty

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLAIN_BASES = (object, enum.Enum, tuple)


def describe(module: types.ModuleType) -> Iterator[str]:
    """Lines for the module: every name of `__all__`, sorted; a missing one is an `AttributeError`."""
    yield f"module {module.__name__}"
    for name in sorted(module.__all__):
        yield from (f"  {line}" for line in describe_name(name, getattr(module, name)))


def describe_name(name: str, value: Any) -> Iterator[str]:
    """Lines for one public name: a class with its members, a function with its signature."""
    if inspect.isclass(value):
        yield from _class(name, value)
    elif isinstance(value, types.ModuleType):
        yield f"module {name}"
    elif callable(value):
        yield f"{_kind(value)} {name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _class(name: str, cls: Any) -> Iterator[str]:
    if cls.__name__ != name:
        yield f"{name} = {cls.__name__}"
        return
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if issubclass(cls, enum.Enum):
        yield from (f"  {member.name} = {_text(member.value)}" for member in cls)
    elif not issubclass(cls, BaseException) or "__init__" in vars(cls):
        yield f"  {signature(cls)}"
    for member, value in sorted(members(cls).items()):
        yield f"  {_member(cls, member, value)}"


def members(cls: type) -> dict[str, Any]:
    """Public attributes of the class and of its bases in this project; bases from elsewhere are named in the class line."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in _PLAIN_BASES and base.__module__.split(".")[0] == "monarch":
            annotated = dict.fromkeys(vars(base).get("__annotations__", {}))
            public = {name: value for name, value in {**annotated, **vars(base)}.items() if not name.startswith("_")}
            # These raise `AttributeError` with a hint.
            found |= {name: value for name, value in public.items() if not isinstance(value, ForeignName)}
    if issubclass(cls, enum.Enum):
        found = {name: value for name, value in found.items() if name not in cls.__members__}
    return found


def _member(cls: type, name: str, value: Any) -> str:
    if type(value) in (classmethod, staticmethod):
        return f"{type(value).__name__} {name}{signature(value.__func__)}"
    if isinstance(value, property) or inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
        annotation = inspect.get_annotations(value.fget).get("return") if isinstance(value, property) and value.fget else None
        if annotation is None:
            annotation = vars(cls).get("__annotations__", {}).get(name)
        settable = "" if not isinstance(value, property) or value.fset is None else " (settable)"
        return f"attribute {name}{f': {_text(annotation)}' if annotation is not None else ''}{settable}"
    # An endpoint is called by the adverbs of a handle; its own call is an error.
    if callable(value) and not isinstance(value, EndpointProperty):
        return f"{_kind(value)} {name}{signature(value)}"
    annotation = vars(cls).get("__annotations__", {}).get(name)
    return f"attribute {name}{f': {_text(annotation)}' if annotation is not None else ''}"


def _kind(value: Any) -> str:
    return "async def" if inspect.iscoroutinefunction(value) else "def"


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return _ADDRESS.sub("", inspect.formatannotation(annotation) if inspect.isclass(annotation) else repr(annotation))


def signature(value: Any) -> str:
    """The signature in source form, `(...)` if the object has none."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parts: list[str] = []
    seen_star = slash = False
    for parameter in found.parameters.values():
        kind = parameter.kind
        if slash and kind is not inspect.Parameter.POSITIONAL_ONLY:
            parts.append("/")
            slash = False
        slash = slash or kind is inspect.Parameter.POSITIONAL_ONLY
        if kind is inspect.Parameter.KEYWORD_ONLY and not seen_star:
            parts.append("*")
            seen_star = True
        seen_star = seen_star or kind is inspect.Parameter.VAR_POSITIONAL
        parts.append(_parameter(parameter))
    if slash:
        parts.append("/")
    returned = "" if found.return_annotation is inspect.Signature.empty else f" -> {_text(found.return_annotation)}"
    return f"({', '.join(parts)}){returned}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotated = parameter.annotation is not inspect.Parameter.empty
    text = f"{stars}{parameter.name}{f': {_text(parameter.annotation)}' if annotated else ''}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = _ADDRESS.sub("", repr(parameter.default))
    return f"{text} = {default}" if annotated else f"{text}={default}"
