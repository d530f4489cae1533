"""The `Actor` base class, the endpoint decorators, and the checks of a class before it is spawned."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from monarch._core.call.coroutine_function import is_coroutine_function, is_generator_function
from monarch._core.call.deadline import check_seconds
from monarch._core.call.foreign_names import ForeignName
from monarch._core.shape.mesh import MeshTrait

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable
    from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, Protocol, Self, TypeVar, overload

    from monarch._core.call.endpoint import Endpoint
    from monarch._core.call.port import Port
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.shape.shape import Shape
    from monarch._core.shape.slice import Slice

    P = ParamSpec("P")
    R = TypeVar("R")
    Propagator = str | Callable[..., Any] | None

    class _Decorator(Protocol):
        @overload
        def __call__(self, method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Endpoint[P, R]: ...
        @overload
        def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> Endpoint[P, R]: ...

    class _PortDecorator(Protocol):
        @overload
        def __call__(self, method: Callable[Concatenate[Any, Port[R], P], Awaitable[None]], /) -> Endpoint[P, R]: ...
        @overload
        def __call__(self, method: Callable[Concatenate[Any, Port[R], P], None], /) -> Endpoint[P, R]: ...

    class _ConcurrentDecorator(Protocol):
        def __call__(self, method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Endpoint[P, R]: ...


# The hook for messages that come back.
UNDELIVERABLE = "_handle_undeliverable_message"
# The ways to call an endpoint of a handle, and that of Ray.
_ADVERBS = frozenset({"broadcast", "call", "call_one", "choose", "remote", "rref", "stream"})
# Public attributes of a handle: no endpoint may have one of these names.
HANDLE_ATTRIBUTES = frozenset({"slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized", "actor_class"})


class EndpointDeclaration:
    """What `@endpoint` declares of a method, for the runtime."""

    __slots__ = ("is_async", "is_concurrent", "is_explicit", "method", "propagator", "timeout")

    def __init__(
        self,
        method: Callable[..., Any],
        propagator: Propagator,
        is_explicit: bool,
        is_concurrent: bool,
        is_async: bool,
        timeout: float | None,
    ) -> None:
        self.method = method
        self.propagator = propagator
        # The method answers by a port that it receives.
        self.is_explicit = is_explicit
        self.is_concurrent = is_concurrent
        self.is_async = is_async
        # The seconds that a call may take; None without a limit of the endpoint.
        self.timeout = timeout


class EndpointProperty:
    """The result of `@endpoint` on a method. A class and its instances give the property itself; handles turn it into an `Endpoint`."""

    __slots__ = ("__weakref__", "_concurrent", "_explicit_response_port", "_instrument", "_is_async", "_method", "_propagator", "_timeout")

    def __init__(
        self,
        method: Callable[..., Any],
        propagator: Propagator = None,
        explicit_response_port: bool = False,
        instrument: bool = True,
        concurrent: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._method = method
        self._propagator = propagator
        self._explicit_response_port = explicit_response_port
        self._instrument = instrument
        self._concurrent = concurrent
        self._timeout = None if timeout is None else check_seconds("timeout", timeout)
        self._is_async = is_coroutine_function(method)

    @property
    def __core__(self) -> EndpointDeclaration:
        return EndpointDeclaration(
            self._method, self._propagator, self._explicit_response_port, self._concurrent, self._is_async, self._timeout
        )

    def __get__(self, instance: object, owner: type | None = None) -> EndpointProperty:
        return self

    def __repr__(self) -> str:
        return f"<endpoint {getattr(self._method, '__qualname__', self._method)}>"

    def _refusal(self) -> str:
        name = getattr(self._method, "__qualname__", None) or repr(self._method)
        method = name.rpartition(".")[2]
        return (
            f"{name} is an endpoint, and this object is no handle of spawned actors\n"
            f"  hint: spawn the class, as in `actors = procs.spawn(NAME, CLASS)`, and call `actors.{method}.call(...)`; "
            "code that actors and other callers share goes into a method without @endpoint"
        )

    def __call__(self, /, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(self._refusal())

    def __getattr__(self, name: str) -> NoReturn:
        # The adverbs of an endpoint, as in `actor.method.call(...)`.
        # A private name may be a slot of an instance that is being unpickled, which has no text yet.
        raise AttributeError(self._refusal() if name in _ADVERBS else name if name[:1] == "_" else f"{self!r} has no attribute {name!r}")


class NotAnEndpoint:
    """A method of the spawned class that is not an endpoint; only `as_endpoint` can use it."""

    __slots__ = ("__core__", "_class_name")

    def __init__(self, handle: Any, name: str, class_name: str, method: Any) -> None:
        # The function from which `as_endpoint` makes an endpoint.
        self.__core__ = handle, name, method
        self._class_name = class_name

    def _refusal(self) -> str:
        name = self.__core__[1]
        return (
            f"Actor {self._class_name}.{name} is not annotated as an endpoint. "
            f"Decorate it with @endpoint, or call it through as_endpoint(actor.{name})."
        )

    def __repr__(self) -> str:
        return f"<NotAnEndpoint {self._class_name}.{self.__core__[1]}>"

    def __call__(self, /, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(self._refusal())

    def __getattr__(self, name: str) -> NoReturn:
        # The attributes of an endpoint, as in `actor.method.call(...)`.
        raise AttributeError(self._refusal() if name[:1] != "_" else name)


if TYPE_CHECKING:

    @overload
    def endpoint(method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Endpoint[P, R]: ...
    @overload
    def endpoint(method: Callable[Concatenate[Any, P], R], /) -> Endpoint[P, R]: ...
    @overload
    def endpoint(
        *,
        propagate: Propagator = None,
        explicit_response_port: Literal[False] = False,
        instrument: bool = True,
        timeout: float | None = None,
    ) -> _Decorator: ...
    @overload
    def endpoint(
        *, propagate: Propagator = None, explicit_response_port: Literal[True], instrument: bool = True, timeout: float | None = None
    ) -> _PortDecorator: ...
    @overload
    def concurrent_endpoint(method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Endpoint[P, R]: ...
    @overload
    def concurrent_endpoint(
        *,
        propagate: Propagator = None,
        explicit_response_port: Literal[False] = False,
        instrument: bool = True,
        timeout: float | None = None,
    ) -> _ConcurrentDecorator: ...
    @overload
    def concurrent_endpoint(
        *, propagate: Propagator = None, explicit_response_port: Literal[True], instrument: bool = True, timeout: float | None = None
    ) -> _PortDecorator: ...


def endpoint(
    method: Any = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
    timeout: float | None = None,
) -> Any:
    """Makes a method callable on handles of its actor.

    Args:
        method: the method, sync or async; without it, the call gives a decorator.
        propagate: for monarch-tensor: computes the shapes of the results on the controller.
        explicit_response_port: the method has a `Port` after `self`, and answers by one message to it, also after it has returned.
        instrument: False leaves out the span of each call.
        timeout: the seconds that a call may take, as in a block of `deadline`; of both limits the earlier one holds.

    Returns:
        The property that handles turn into an `Endpoint`, or a decorator.

    Raises:
        ValueError: the method is an endpoint already, or `timeout` is negative, infinite or NaN.
        TypeError: `timeout` is no number.

    ```python
    from monarch.actor import Actor, endpoint, this_host

    class Greeter(Actor):
        @endpoint
        async def greet(self, name: str) -> str:
            return f"hello {name}"

    with this_host().spawn_procs({"procs": 1}) as procs:
        assert procs.spawn("greeter", Greeter).greet.call_one("you").get() == "hello you"
    ```
    """

    def decorate(function: Callable[..., Any]) -> EndpointProperty:
        if isinstance(function, EndpointProperty):
            raise ValueError(f"{function!r} is an endpoint already")
        return EndpointProperty(function, propagate, explicit_response_port, instrument, timeout=timeout)

    return decorate if method is None else decorate(method)


def concurrent_endpoint(
    method: Any = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
    timeout: float | None = None,
) -> Any:
    """An async endpoint whose body runs as a task while the actor goes on with its next message.

    `ValueError` on top of `@endpoint`, or on a method that is not `async def`.
    """

    def decorate(function: Callable[..., Any]) -> EndpointProperty:
        if isinstance(function, EndpointProperty):
            raise ValueError(f"concurrent_endpoint does not wrap @endpoint: {function!r}")
        if not is_coroutine_function(function):
            raise ValueError(f"concurrent_endpoint can only wrap async endpoints: {getattr(function, '__qualname__', function)}")
        return EndpointProperty(function, propagate, explicit_response_port, instrument, concurrent=True, timeout=timeout)

    return decorate if method is None else decorate(method)


def _on_handle_only(name: str) -> Any:
    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__}.{name}: this is an actor instance; call {name} on the handle that spawn returned")

    refuse.__name__ = name
    return refuse


class _Logger:
    def __get__(self, instance: object, owner: type) -> logging.Logger:
        import logging

        logger = logging.getLogger(f"{owner.__module__}.{owner.__qualname__}")
        logger.setLevel(logging.DEBUG)
        return logger


class Actor(MeshTrait):
    """Base class of all actors. An instance lives in one process, on one thread, and handles one message at a time.

    Endpoints of a class are all sync, or all async. Optional hooks: `__supervise__(failure) -> bool` is called when a mesh that the actor
    owns has failed, and returns True to go on; `__cleanup__(exc)` runs when the actor ends, with None after a stop;
    `_handle_undeliverable_message(envelope)` is called when a port message of the actor comes back.

    ```python
    from monarch.actor import Actor, endpoint, this_host

    class Counter(Actor):
        def __init__(self, start: int) -> None:
            self.count = start

        @endpoint
        def add(self, n: int) -> int:
            self.count += n
            return self.count

    with this_host().spawn_procs({"procs": 2}) as procs:
        counters = procs.spawn("counters", Counter, 10)
        assert counters.add.call(5).get().values() == [15, 15]
    ```
    """

    if TYPE_CHECKING:
        logger: logging.Logger
    else:
        logger = _Logger()
        options = ForeignName()
        remote = ForeignName()
    _is_system_actor: bool = False

    def __supervise__(self, failure: MeshFailure) -> bool | None:
        """Called once per failed rank of each owned mesh. A true result ends the failure here; any other result fails this actor."""

    def __cleanup__(self, exc: Exception | None) -> Any:
        """Runs once when the actor ends: with None when stopped, with an exception that holds the text when it failed."""

    def _handle_undeliverable_message(self, envelope: Any) -> bool:
        return False

    # Methods that every actor has: `EndpointCall.through` and `Receivers.sent` call them by these names.

    def _call_through(self, function: Callable[..., Any], given: tuple[Any, ...], name: str, /, *args: Any, **kwargs: Any) -> Any:
        return function(*given, self._method_of(name), *args, **kwargs)

    async def _await_through(self, function: Callable[..., Any], given: tuple[Any, ...], name: str, /, *args: Any, **kwargs: Any) -> Any:
        return await function(*given, self._method_of(name), *args, **kwargs)

    def _call_function(self, function: Callable[..., Any], given: tuple[Any, ...], /) -> Any:
        return function(*given)

    def _method_of(self, name: str) -> Any:
        found = getattr(self, name)
        return found.__core__.method.__get__(self) if isinstance(found, EndpointProperty) else found

    # The trait makes `handle.slice(...)` type-check on a handle typed as the class; an instance has no shape.
    if not TYPE_CHECKING:
        slice = _on_handle_only("slice")
        split = _on_handle_only("split")
        flatten = _on_handle_only("flatten")
        rename = _on_handle_only("rename")
        size = _on_handle_only("size")
        stop = _on_handle_only("stop")
        sizes = property(_on_handle_only("sizes"))
        extent = property(_on_handle_only("extent"))
        initialized = property(_on_handle_only("initialized"))
        __len__ = _on_handle_only("__len__")
    else:

        def stop(self, reason: str = "stopped by client") -> Any: ...

        @property
        def initialized(self) -> Any: ...

    def __bool__(self) -> bool:
        return True

    @property
    def _ndslice(self) -> Slice:
        raise NotImplementedError("an actor instance has no shape: use the handle that spawn returned")

    @property
    def _labels(self) -> tuple[str, ...]:
        raise NotImplementedError("an actor instance has no shape: use the handle that spawn returned")

    def _new_with_shape(self, shape: Shape) -> Self:
        raise NotImplementedError("an actor instance has no shape: use the handle that spawn returned")


class ActorClass:
    """The runtime's view of a class: its endpoints, whether it runs on an event loop, its hooks."""

    __slots__ = ("__weakref__", "cleanup", "endpoints", "has_free_names", "is_async", "supervise", "undeliverable")

    def __init__(self, cls: type) -> None:
        # Set when the names of the endpoints have been compared with the attributes of handles.
        self.has_free_names = False
        self.endpoints: dict[str, EndpointDeclaration] = {}
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                if isinstance(value, EndpointProperty):
                    self.endpoints[name] = value.__core__
                else:
                    self.endpoints.pop(name, None)
        found = self.endpoints.values()
        self.is_async = not found or any(e.is_async for e in found)
        self.supervise = _override(cls, "__supervise__")
        self.cleanup = _override(cls, "__cleanup__")
        self.undeliverable = _override(cls, UNDELIVERABLE)

    def check(self, cls: type) -> None:
        """Raises `ValueError` for a class that cannot be spawned."""
        for name, declared in self.endpoints.items():
            if is_generator_function(declared.method):
                raise ValueError(
                    f"{cls.__qualname__}.{name} is a generator, but an endpoint has one answer: return a list, or send to a Port"
                )
        kinds = {e.is_async for e in self.endpoints.values()}
        if len(kinds) == 2:
            sync = sorted(n for n, e in self.endpoints.items() if not e.is_async)
            raise ValueError(f"{cls.__qualname__} mixes both async and sync endpoints: {', '.join(sync)} must be async, or all others sync")
        hooks = {
            "__supervise__": self.supervise,
            "__cleanup__": self.cleanup,
            UNDELIVERABLE: self.undeliverable,
        }
        if kinds == {False}:
            for name, hook in hooks.items():
                if hook is not None and is_coroutine_function(hook):
                    raise ValueError(f"{cls.__qualname__} has sync endpoints, but an async {name}")
        if kinds == {True} and self.cleanup is not None and not is_coroutine_function(self.cleanup):
            raise ValueError(f"{cls.__qualname__} has async endpoints, but a synchronous __cleanup__")


def _override(cls: type, name: str) -> Any:
    value = getattr(cls, name)
    return None if value is getattr(Actor, name) else value


_known: WeakKeyDictionary[type, ActorClass] = WeakKeyDictionary()


def class_name(cls: type) -> str:
    """The qualified name of a class in displays and errors."""
    return f"{cls.__module__}.{cls.__qualname__}".replace("<locals>.", "")


def actor_class(cls: type) -> ActorClass:
    """The checked description of a class; `ValueError` if it cannot be spawned."""
    known = _known.get(cls) if isinstance(cls, type) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if known is None:
        if not (isinstance(cls, type) and issubclass(cls, Actor)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{cls!r} must subclass monarch.actor.Actor")
        known = ActorClass(cls)
        known.check(cls)
        _known[cls] = known
    return known
