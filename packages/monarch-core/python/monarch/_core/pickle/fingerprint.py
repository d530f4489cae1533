"""The check whether a class that is sent by value is unchanged.

A fingerprint visits everything that cloudpickle would: the entries of the class, code, defaults, cells and referenced globals
of its functions, and further through functions, classes and small containers that are sent by value too. It records every place where a
name is bound, with the object there. `unchanged` reads all these places again and compares identities, which is far cheaper than the
first visit. An object that can change without a rebinding, such as an instance, has no fingerprint.
"""

from __future__ import annotations

import sys
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    EllipsisType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    NotImplementedType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

from monarch._core.pickle.reference import goes_by_value, module_by_value

# The number of objects beyond which checking all of them costs as much as pickling them.
_BUDGET = 600
# The number of code objects whose names are cached; a notebook makes new ones all the time.
_CODES = 4096

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, EllipsisType, NotImplementedType})
_FIXED = (
    GetSetDescriptorType,
    MemberDescriptorType,
    WrapperDescriptorType,
    MethodDescriptorType,
    ClassMethodDescriptorType,
    MethodWrapperType,
)
# Entries that the class itself creates.
_SKIPPED = frozenset({"__dict__", "__weakref__", "_abc_impl"})
# Types whose instances do not change, or whose pickle is their name.
_STEADY = frozenset(
    {
        ("logging", "Logger"),
        ("logging", "RootLogger"),
        ("re", "Pattern"),
        ("typing", "TypeVar"),
        ("typing", "ParamSpec"),
        ("typing", "TypeVarTuple"),
        ("typing", "_SpecialForm"),
        ("typing", "_AnyMeta"),
        ("typing", "_SpecialGenericAlias"),
        ("typing", "_CallableType"),
        ("typing", "_TupleType"),
    }
)
_ABSENT: Any = object()
_names: dict[CodeType, tuple[str, ...]] = {}


class Mutable(Exception):
    """A part of the class may change unnoticed."""


class Fingerprint:
    """The places of the parts of a class, and the objects found there. Raises `Mutable` if the list cannot be complete."""

    __slots__ = ("_abstract", "_cells", "_functions", "_maps", "_parts", "_seen", "_sequences", "_todo")

    def __init__(self, cls: type) -> None:
        self._functions: list[tuple[Any, Any, Any, Any, Any, Any]] = []
        self._maps: list[tuple[Any, int, list[tuple[Any, Any]]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._sequences: list[tuple[Any, tuple[Any, ...]]] = []
        self._parts: list[tuple[Any, str, Any]] = []
        self._abstract: list[type] = []
        self._seen: dict[int, Any] = {}  # holds the visited objects, so that ids stay unique
        self._todo: list[Any] = [cls]
        while self._todo:
            self._visit(self._todo.pop())
        self._seen.clear()

    def unchanged(self) -> bool:
        for function, code, defaults, keyword_defaults, name, doc in self._functions:
            if (
                function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not keyword_defaults
                or function.__qualname__ is not name
                or function.__doc__ is not doc
            ):
                return False
        for mapping, size, items in self._maps:
            if size >= 0 and len(mapping) != size:
                return False
            get = mapping.get
            for name, value in items:
                if get(name, _ABSENT) is not value:
                    return False
        for cell, value in self._cells:
            if _contents(cell) is not value:
                return False
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or any(now is not then for now, then in zip(sequence, items, strict=True)):
                return False
        for owner, name, value in self._parts:
            if getattr(owner, name, _ABSENT) is not value:
                return False
        return all(_registry(cls) == 0 for cls in self._abstract)

    def _visit(self, value: Any) -> None:
        kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
        if kind in _ATOMS or value is _ABSENT or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._seen) > _BUDGET:
            raise Mutable
        if kind is FunctionType:
            if not _importable(value):
                self._function(value)
        elif issubclass(kind, type):
            if not _importable(value):
                self._class(value)
        elif kind is tuple or kind is frozenset:
            self._todo.extend(value)
        elif kind is staticmethod or kind is classmethod:
            self._part(value, "__func__")
        elif kind is property:
            self._todo += (value.fget, value.fset, value.fdel)
        elif kind is CellType:
            content = _contents(value)
            self._cells.append((value, content))
            self._todo.append(content)
        elif kind is dict or kind is MappingProxyType:
            self._mapping(value)
        elif kind is list:
            self._sequences.append((value, tuple(value)))
            self._todo += value
        else:
            self._other(value, kind)

    def _function(self, function: FunctionType) -> None:
        code, defaults, keyword_defaults = function.__code__, function.__defaults__, function.__kwdefaults__
        self._functions.append((function, code, defaults, keyword_defaults, function.__qualname__, function.__doc__))
        self._todo += (defaults, keyword_defaults, function.__closure__, function.__annotations__)
        if function.__dict__:
            self._todo.append(function.__dict__)
        else:
            self._maps.append((function.__dict__, 0, []))
        space = function.__globals__
        bound = [(name, space.get(name, _ABSENT)) for name in global_names(code)]
        if bound:
            self._maps.append((space, -1, bound))
            self._todo += [value for _, value in bound]

    def _class(self, cls: type) -> None:
        self._todo += (type(cls), *cls.__bases__)
        self._parts.append((cls, "__bases__", cls.__bases__))
        entries = cls.__dict__
        kept = [(name, value) for name, value in entries.items() if name not in _SKIPPED]
        self._maps.append((entries, len(entries), kept))
        self._todo += [value for _, value in kept]
        if "_abc_impl" in entries:
            if _registry(cls):
                raise Mutable
            self._abstract.append(cls)

    def _mapping(self, mapping: Any) -> None:
        items = list(mapping.items())
        self._maps.append((mapping, len(items), items))
        for key, value in items:
            self._todo += (key, value)

    def _part(self, owner: Any, name: str) -> None:
        value = getattr(owner, name, _ABSENT)
        self._parts.append((owner, name, value))
        self._todo.append(value)

    def _other(self, value: Any, kind: type[Any]) -> None:
        if kind in _FIXED:
            return
        home, name = kind.__module__, kind.__name__
        if kind is ModuleType:
            if module_by_value(value.__name__) or sys.modules.get(value.__name__) is not value:
                raise Mutable
        elif kind is BuiltinFunctionType:
            owner = value.__self__
            if owner is not None and not isinstance(owner, ModuleType | type):
                raise Mutable
        elif name == "_lru_cache_wrapper":
            if goes_by_value(value):
                self._part(value, "__wrapped__")
        elif kind is GenericAlias or kind is UnionType or (home == "typing" and hasattr(value, "__args__")):
            self._todo += (getattr(value, "__origin__", None), value.__args__)
        elif name == "cached_property" and home == "functools":
            self._part(value, "func")
        elif name == "EndpointProperty" and home.startswith("monarch."):
            self._instance(value, kind)
        elif (home, name) in _STEADY:
            return
        elif _is_member(kind):
            self._todo.append(kind)
        else:
            raise Mutable

    def _instance(self, value: Any, kind: type[Any]) -> None:
        """Visits a descriptor of this package, which changes only with its attributes."""
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in _SKIPPED:
                    self._part(value, slot)
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            self._mapping(attributes)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _registry(cls: type) -> int:
    from abc import _get_dump  # pyright: ignore

    return len(_get_dump(cls)[0])  # pyright: ignore


def _is_member(kind: Any) -> bool:
    enum: Any = sys.modules.get("enum")
    return enum is not None and issubclass(kind, enum.Enum)


def _importable(value: Any) -> bool:
    """Whether cloudpickle would send a class or function by its name."""
    if goes_by_value(value):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value or value.__module__ == "builtins"


def global_names(code: CodeType) -> tuple[str, ...]:
    """Names of the globals that a code object and the code inside it use."""
    found = _names.get(code)
    if found is None:
        import dis

        names = dict.fromkeys(op.argval for op in dis.get_instructions(code) if op.opname.endswith("_GLOBAL") or op.opname == "LOAD_NAME")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                names.update(dict.fromkeys(global_names(constant)))
        if len(_names) >= _CODES:
            _names.clear()
        found = _names[code] = tuple(names)
    return found
