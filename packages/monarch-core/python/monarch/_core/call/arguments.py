"""The check of the arguments of a call against the signature of its method, before the message is sent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import Signature
    from typing import Any


def check_arguments(function: Any, skip: int, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "") -> None:
    """Raises the `TypeError` of a call with `skip` more leading arguments, with the name and the signature before it."""
    if function is object.__init__:
        if args or kwargs:
            raise TypeError(f"{name}{': ' if name else ''}the class has no __init__ and takes no arguments")
        return
    code = getattr(function, "__code__", None)
    if code is not None and not kwargs and not code.co_kwonlyargcount:
        given = len(args) + skip
        most = code.co_argcount
        if most - len(function.__defaults__ or ()) <= given and (given <= most or code.co_flags & 0x04):
            return
    if function is None:  # the runtime calls a method that every actor has
        return
    import inspect

    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # the signature is unknown, as for some C functions
    try:
        signature.bind(*(None,) * skip, *args, **kwargs)
    except TypeError as e:
        if not name:
            raise
        raise TypeError(f"{name}{_shown(signature, skip)}: {e}") from None


def _shown(signature: Signature, skip: int) -> str:
    """The signature as it is called: without the leading parameters, and without annotations, which may be long."""
    kept = [p.replace(annotation=p.empty) for p in list(signature.parameters.values())[skip:]]
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))
