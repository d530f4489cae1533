"""Classes by which a test has replaced others: in `spawn`, and in `activate`.

A process that was never patched does not import this module; the runtime looks for it in `sys.modules`.
"""

from __future__ import annotations

from monarch._core.call.actor import Actor
from monarch._core.call.coroutine_function import is_coroutine_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from monarch._core.hosts.host_mesh import ProcMesh

    F = TypeVar("F", bound=Callable[..., Any])
    Factory = Callable[[ProcMesh], Any]


class _Registry:
    """Replacements by class: those without patches, and the patches in force, oldest first, as they may end in any order."""

    def __init__(self) -> None:
        self.current: dict[type[Actor], Any] = {}
        self._base: dict[type[Actor], Any] = {}
        self._patches: list[tuple[object, type[Actor], Any]] = []

    def set_base(self, base: dict[type[Actor], Any]) -> None:
        self._base = dict(base)
        self._apply()

    def add(self, patch: object, key: type[Actor], value: Any) -> None:
        self._patches.append((patch, key, value))
        self._apply()

    def remove(self, patch: object) -> None:
        # A patch may be in force more than once: its last entry is removed.
        del self._patches[max(i for i, entry in enumerate(self._patches) if entry[0] is patch)]
        self._apply()

    def _apply(self) -> None:
        self.current = self._base | {key: value for _, key, value in self._patches}


_actors, _engines = _Registry(), _Registry()


class _Patch:
    """A temporary entry of a registry: a context manager, sync and async, and a decorator."""

    _registry: _Registry

    def __init__(self, key: type[Actor], value: Any) -> None:
        if not (isinstance(key, type) and issubclass(key, Actor)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{key!r} must be a subclass of Actor")
        self._key = key
        self._value = value

    def __enter__(self) -> Any:
        self._registry.add(self, self._key, self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._registry.remove(self)

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __call__(self, function: F) -> F:
        from functools import wraps

        if is_coroutine_function(function):

            @wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return run_async  # pyright: ignore[reportReturnType]

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run  # pyright: ignore[reportReturnType]


class patch_actor(_Patch):
    """While in force, every `spawn` of `original` builds `mock`; gives `mock`.

    Applies to processes that are spawned meanwhile, and to their spawns; not to existing processes. `TypeError` unless both are actors.
    """

    _registry = _actors

    def __init__(self, original: type[Actor], mock: type[Actor]) -> None:
        super().__init__(original, mock)
        if not (isinstance(mock, type) and issubclass(mock, Actor)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{mock!r} must be a subclass of Actor")
        self.original = original
        self.mock = mock


class patch_tensor_engine(_Patch):
    """While in force, `activate()` of a proc mesh inside `actor_class` gives `factory(proc_mesh)`; by default a simulator.

    Gives the factory. The default needs monarch-tensor. Without it, the factory raises an error that names the wheel.
    """

    _registry = _engines

    def __init__(self, actor_class: type[Actor], factory: Factory | None = None) -> None:
        factory = factory or simulated
        super().__init__(actor_class, factory)
        self.actor_class = actor_class
        self.factory = factory


def simulated(proc_mesh: ProcMesh) -> Any:
    """The simulator of monarch-tensor; `NotImplementedError` without that wheel."""
    from monarch._core.call.mesh_methods import implementation

    return implementation("simulator", "patch_tensor_engine without a factory")(proc_mesh)


def get_actor_class(cls: type[Actor]) -> type[Actor]:
    """The class that `spawn` builds for this one: itself, or its replacement."""
    return _actors.current.get(cls, cls)


def get_tensor_engine_factory(cls: type[Actor]) -> Factory | None:
    """The factory that `activate()` calls inside this actor class; None if the class is not patched."""
    return _engines.current.get(cls)


def get_actor_mock_registry_state() -> dict[type[Actor], type[Actor]]:
    """A copy of the registry: original class to its replacement."""
    return dict(_actors.current)


def set_actor_mock_registry_state(state: dict[type[Actor], type[Actor]]) -> None:
    """Replaces the registry of this process; patches in force have precedence."""
    _actors.set_base(state)


def get_tensor_engine_mock_registry_state() -> dict[type[Actor], Factory]:
    """A copy of the registry: actor class to factory."""
    return dict(_engines.current)


def set_tensor_engine_mock_registry_state(state: dict[type[Actor], Factory]) -> None:
    """Replaces the registry of this process; patches in force have precedence."""
    _engines.set_base(state)


# ---- passing patches to new processes


def pushed() -> tuple[Any, ...] | None:
    """The patches for a process that is spawned now; None if no class is patched."""
    if not _actors.current and not _engines.current:
        return None
    from monarch._core.pickle.actor_class import dumps_class
    from monarch._core.pickle.pickling import dumps_in_band

    actors = [(dumps_class(key), dumps_class(value)) for key, value in _actors.current.items()]
    engines = [(dumps_class(key), dumps_in_band(value)) for key, value in _engines.current.items()]
    return actors, engines


def accept(state: tuple[Any, ...]) -> None:
    from monarch._core.pickle.actor_class import loads_class
    from monarch._core.pickle.pickling import loads

    actors, engines = state
    set_actor_mock_registry_state({loads_class(key): loads_class(value) for key, value in actors})
    set_tensor_engine_mock_registry_state({loads_class(key): loads(value) for key, value in engines})
