"""The settings of this process: layers of values, and the effective values.

For every key the first layer that has it wins: test override, environment, `configure`, values pushed by the client, default. A
change of any layer builds a new effective dict and puts it in place in one step, so readers take no lock and never see half of a
`configure`. The environment is read once, when the first value is needed.

Procs receive plain values (`pushed_values`), which become the pushed layer there (`apply_pushed`). Settings of other wheels are
declared late (`known_settings`): values that were set or sent before apply to them too.
"""

from __future__ import annotations

from _thread import RLock

from monarch._core.config.known_settings import KNOWN, declare, known, unknown
from monarch._core.config.setting import Encoding, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])
    Values = dict[str, object]

__all__ = [
    "Configuration",
    "Encoding",
    "apply_pushed",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "host_loss_seconds",
    "on_change",
    "origins",
    "overridden",
    "parametrize_config",
    "parametrize_config_pointwise",
    "pushed_values",
    "reload_config_from_env",
    "reset_config_to_defaults",
    "seconds",
    "spawn_ready_seconds",
    "value",
]


def _defaults() -> Values:
    return {name: setting.default for name, setting in KNOWN.items()}


class Origin:
    """A setting with its effective value. `source` is `override`, `environment`, `configure`, `client` or `default`.

    `variable` is the environment variable that has set it, or the first one of those that can.
    """

    __slots__ = ("setting", "source", "value", "variable")

    def __init__(self, setting: Setting, value: object, source: str, variable: str) -> None:
        self.setting = setting
        self.value = value
        self.source = source
        self.variable = variable

    def shown(self, value: object) -> object:
        """A value of this setting as plain data."""
        return self.setting.to_text(value)


class Configuration:
    """One set of layers. The process has one; a test may make another, with an environment of its own."""

    __slots__ = (
        "_callbacks",
        "_declared",
        "_environ",
        "_environment",
        "_later",
        "_layers",
        "_lock",
        "_quiet",
        "_reset",
        "_view",
        "_warned",
    )

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._lock = RLock()
        self._environ = environ
        # Key to variable and value; None until it has been read.
        self._environment: dict[str, tuple[str, object]] | None = None
        self._layers: dict[str, Values] = {"override": {}, "runtime": {}, "pushed": {}}
        self._view: Values | None = None
        self._callbacks: list[Callable[[Values], object]] = []
        self._warned: set[str] = set()
        # True in a proc: the client has logged the warnings about the environment.
        self._quiet = False
        # The environment counts as empty until the next reload.
        self._reset = False
        # The number of settings when the view was built, and pushed values of keys that are not declared here yet.
        self._declared = 0
        self._later: Values = {}

    def view(self) -> Mapping[str, object]:
        """The effective values, which callers must not change. No lock is taken once the environment has been read."""
        view = self._view
        if view is not None:
            return view
        with self._lock:
            complaints = self._read_environment() if self._environment is None else []
            view = self._build()
        _log(complaints)
        return view

    def whole(self) -> Mapping[str, object]:
        """The effective values, including those of all wheels."""
        declare()
        self._catch_up()
        return self.view()

    def origins(self) -> list[Origin]:
        """Every setting with its effective value and its layer."""
        view = self.whole()
        with self._lock:
            environment, layers = self._environment or {}, self._layers
        found: list[Origin] = []
        for name, setting in KNOWN.items():
            variable = setting.variables[0]
            if name in layers["override"]:
                source = "override"
            elif name in environment:
                source, variable = "environment", environment[name][0]
            elif name in layers["runtime"]:
                source = "configure"
            else:
                source = "client" if name in layers["pushed"] else "default"
            found.append(Origin(setting, view[name], source, variable))
        return found

    def _catch_up(self) -> None:
        """Gives keys that were declared since the view was built the values that were set and sent for them."""
        self.view()
        if self._declared == len(KNOWN):
            return
        with self._lock:
            complaints = [] if self._reset else self._read_environment()
            pushed = dict(self._layers["pushed"])
            for name in [name for name in self._later if name in KNOWN]:
                try:
                    pushed[name] = _received(KNOWN[name], self._later.pop(name))
                except (TypeError, ValueError) as error:
                    complaints.append(f"what the client sent is ignored: {error}")
            self._layers = {**self._layers, "pushed": pushed}
            self._build()
        _log(complaints)

    def layer(self, name: str) -> Values:
        """A copy of the layer `override`, `runtime` or `pushed`."""
        return dict(self._layers[name])

    def merge(self, layer: str, values: Mapping[str, object]) -> None:
        """Check all values, then put them into a layer. Raises like `configure`."""
        checked = _checked(values)
        self._warn_ignored(checked)
        self._catch_up()
        with self._lock:
            environment = self._environment or {}
            hidden = [name for name in checked if layer == "runtime" and name in environment and environment[name][1] != checked[name]]
            changed = self._replace(layer, {**self._layers[layer], **checked})
        _log(f"configuration key `{name}` keeps {environment[name][1]!r}: variable {environment[name][0]} is set" for name in hidden)
        self._notify(changed)

    def replace(self, layer: str, values: Values) -> None:
        """Put checked values in place of a whole layer."""
        self.view()
        with self._lock:
            changed = self._replace(layer, dict(values))
        self._notify(changed)

    def reload(self) -> None:
        """Read the environment again."""
        before = self.view()
        with self._lock:
            self._reset = False
            complaints = self._read_environment()
            changed = _difference(before, self._build())
        _log(complaints)
        self._notify(changed)

    def reset(self) -> None:
        """Empty every layer, the environment included, until it is reloaded."""
        before = self.view()
        with self._lock:
            self._reset = True
            self._environment = {}
            self._later = {}
            self._layers = {name: {} for name in self._layers}
            changed = _difference(before, self._build())
        self._notify(changed)

    def pushed_values(self, elsewhere: bool = True) -> Values:
        """The values for procs: plain values of all keys that are not local and differ from their default.

        Procs that are not `elsewhere` have the environment of this process: they find the values of other wheels' keys there.
        """
        view = self.whole() if elsewhere else self.view()
        values = {
            # Wheels may have declared keys since the view was built.
            name: setting.to_text(found)
            for name, found in view.items()
            if not (setting := KNOWN[name]).local and found != setting.default
        }
        return {**self._later, **values}

    def apply_pushed(self, values: Mapping[str, object]) -> None:
        """Take the result of the client's `pushed_values`, in place of the previous one. Local keys are skipped, unknown ones wait.

        Raises `TypeError` or `ValueError` for a value that does not fit its key, and then changes nothing.
        """
        self._quiet = True
        pushed: Values = {}
        later: Values = {}
        for name, sent in values.items():
            setting = KNOWN.get(name)
            if setting is None:
                later[name] = sent
            elif not setting.local:
                pushed[name] = _received(setting, sent)
        self._later = later
        self.replace("pushed", pushed)

    def on_change(self, callback: Callable[[Values], object]) -> Callable[[], None]:
        """Call `callback` with the new effective values of the changed keys, in the thread that changed them.

        Gives a function that ends this.
        """
        with self._lock:
            self._callbacks = [*self._callbacks, callback]

        def forget() -> None:
            with self._lock:
                self._callbacks = [other for other in self._callbacks if other is not callback]

        return forget

    def _replace(self, layer: str, values: Values) -> Values:
        before = self._view or _defaults()
        self._layers = {**self._layers, layer: values}
        return _difference(before, self._build())

    def _build(self) -> Values:
        environment = {name: found for name, (_, found) in (self._environment or {}).items()}
        layers = self._layers
        defaults = _defaults()
        self._declared = len(defaults)
        self._view = {**defaults, **layers["pushed"], **layers["runtime"], **environment, **layers["override"]}
        return self._view

    def _read_environment(self) -> list[str]:
        environ = self._environ
        if environ is None:
            from os import environ
        complaints: list[str] = []
        found: dict[str, tuple[str, object]] = {}
        for name, setting in KNOWN.items():
            for variable in setting.variables:
                text = environ.get(variable)
                if not text:
                    continue
                try:
                    found[name] = variable, setting.from_text(text)
                except (TypeError, ValueError) as error:
                    complaints.append(f"environment variable {variable} is ignored: {error}")
                else:
                    if setting.ignored and not setting.silent and name not in self._warned:
                        self._warned.add(name)
                        complaints.append(f"environment variable {variable} has no effect: {setting.about}")
                break
        self._environment = found
        return [] if self._quiet else complaints

    def _warn_ignored(self, values: Iterable[str]) -> None:
        for name in values:
            setting = KNOWN[name]
            if setting.ignored and not setting.silent and name not in self._warned:
                from warnings import warn

                self._warned.add(name)
                # The warning names the caller of the public function, which is above this method and `merge`.
                warn(f"configuration key `{name}` has no effect: {setting.about}", UserWarning, stacklevel=4)

    def _notify(self, changed: Values) -> None:
        if changed:
            for callback in self._callbacks:
                callback(dict(changed))


def _checked(values: Mapping[str, object]) -> Values:
    settings = [(known(name), given) for name, given in values.items()]
    return {setting.name: setting.check(given) for setting, given in settings}


def _received(setting: Setting, sent: object) -> object:
    return setting.from_text(sent) if isinstance(sent, str) else setting.check(sent)


def _difference(before: Mapping[str, object], after: Values) -> Values:
    # A key that was declared in between has not changed.
    return {name: after[name] for name in after if name in before and after[name] != before[name]}


_warned: Callable[[str], object] | None = None


def report_warnings(report: Callable[[str], object]) -> None:
    """Sends each warning to `report`, too: the log of the runtime, a layer above the settings."""
    global _warned
    _warned = report


def _log(messages: Iterable[str]) -> None:
    for message in messages:
        from logging import getLogger

        getLogger("monarch.config").warning("%s", message)
        if _warned is not None:
            _warned(message)


def warn_misspelt(names: Iterable[str]) -> None:
    """Logs a warning for each environment variable that no setting has, although its name is close to that of one."""
    from monarch._core.config.misspelt import misspelt

    for name, close in misspelt(names).items():
        _log([f"environment variable {name} has no effect: the setting with the closest name is {close}"])


class Configured:
    """Context manager, and decorator of sync and async functions, that merges values into a layer for its duration."""

    __slots__ = ("_configuration", "_layer", "_saved", "_values")

    def __init__(self, configuration: Configuration, layer: str, values: Mapping[str, object]) -> None:
        self._configuration = configuration
        self._layer = layer
        self._values = values
        self._saved: list[Values] = []

    def __enter__(self) -> Values:
        saved = self._configuration.layer(self._layer)
        self._configuration.merge(self._layer, self._values)
        self._saved.append(saved)
        return dict(self._configuration.whole())

    def __exit__(self, *_: object) -> None:
        self._configuration.replace(self._layer, self._saved.pop())

    def __call__(self, function: Function) -> Function:
        from functools import wraps
        from inspect import iscoroutinefunction

        again = Configured(self._configuration, self._layer, self._values)
        if iscoroutinefunction(function):

            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with again:
                    return await function(*args, **kwargs)

            return wraps(function)(run_async)  # pyright: ignore[reportReturnType]

        def run(*args: Any, **kwargs: Any) -> Any:
            with again:
                return function(*args, **kwargs)

        return wraps(function)(run)  # pyright: ignore[reportReturnType]


_process = Configuration()
_SECONDS: dict[str, float] = {}

on_change = _process.on_change
pushed_values = _process.pushed_values
apply_pushed = _process.apply_pushed
origins = _process.origins


def configure(**settings: object) -> None:
    """Merges settings into the runtime layer of this process; all of them, or none if one is refused. Existing processes do not change.

    A key that the environment sets keeps the value it has there, with a warning in the log; a key without a meaning in this version is
    stored and warned about once.

    Args:
        **settings: keys of docs/settings.md; durations are text such as `"1h 30m"`.

    Raises:
        ValueError: a key is unknown, zero is forbidden for it, or a transport is invalid; the text names the wheel that has the key.
        TypeError: a value has a wrong type, or a duration is malformed.

    ```python
    from monarch.config import configure, get_global_config

    configure(host_loss_timeout="5s", tail_log_lines=50)
    assert get_global_config()["tail_log_lines"] == 50
    ```
    """
    _process.merge("runtime", settings)


def get_global_config() -> dict[str, object]:
    """A copy of the effective values of all keys."""
    return dict(_process.whole())


def get_runtime_config() -> dict[str, object]:
    """A copy of the runtime layer: the values that `configure` has set."""
    return _process.layer("runtime")


def clear_runtime_config() -> None:
    """Empty the runtime layer."""
    _process.replace("runtime", {})


def reload_config_from_env() -> None:
    """Read the environment again: variables that are gone no longer count, those that are new do."""
    _process.reload()


def reset_config_to_defaults() -> None:
    """Give every key its default, whatever its environment variable; `reload_config_from_env` brings the environment back."""
    _process.reset()


def configured(**settings: object) -> Configured:
    """Context manager: `configure(**settings)` on entry, the previous runtime layer on exit; yields the effective values.

    Holds for the whole process, other threads included. Entry raises like `configure`.
    """
    return Configured(_process, "runtime", settings)


def overridden(**settings: object) -> Configured:
    """Like `configured`, for the runtime's own tests: in the layer that beats the environment."""
    return Configured(_process, "override", settings)


def parametrize_config(**options: Iterable[object]) -> Callable[[Function], Function]:
    """Pytest decorator: run a sync or async test under every combination of the values given for each key.

    Raises `ValueError` without options.
    """
    from itertools import product

    return _parametrized("parametrize_config", options, lambda columns: product(*columns))


def parametrize_config_pointwise(**options: Iterable[object]) -> Callable[[Function], Function]:
    """Pytest decorator: run a sync or async test once for each position in the sequences, which must have equal lengths.

    Raises `ValueError` without options and for different lengths.
    """
    columns = {name: list(values) for name, values in options.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"parametrize_config_pointwise needs the same number of values for every key, got {lengths}")
    return _parametrized("parametrize_config_pointwise", columns, lambda values: zip(*values, strict=True))


def _parametrized(
    decorator: str,
    options: Mapping[str, Iterable[object]],
    combine: Callable[[list[list[object]]], Iterable[tuple[object, ...]]],
) -> Callable[[Function], Function]:
    if not options:
        raise ValueError(f"{decorator} needs at least one configuration key")
    # Sets have no order of their own, but test ids must not change from run to run.
    columns = [sorted(values, key=repr) if isinstance(values, (set, frozenset)) else list(values) for values in options.values()]
    cases: list[Values] = [dict(zip(options, case, strict=True)) for case in combine(columns)]
    ids = ["-".join(f"{name}={given}" for name, given in case.items()) for case in cases]

    def decorate(test: Function) -> Function:
        import inspect
        from functools import wraps

        import pytest

        signature = inspect.signature(test)
        parameters = list(signature.parameters.values())
        argument = "_config_overrides"
        while argument in signature.parameters:
            argument += "_"
        extra = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY)
        end = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
        if inspect.iscoroutinefunction(test):

            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with configured(**kwargs.pop(argument)):
                    return await test(*args, **kwargs)

            wrapped: Any = wraps(test)(run_async)
        else:

            def run(*args: Any, **kwargs: Any) -> Any:
                with configured(**kwargs.pop(argument)):
                    return test(*args, **kwargs)

            wrapped = wraps(test)(run)
        wrapped.__signature__ = signature.replace(parameters=[*parameters[:end], extra, *parameters[end:]])
        return pytest.mark.parametrize(argument, cases, ids=ids)(wrapped)

    return decorate


def value(key: str) -> Any:
    """The effective value of a key. Raises `KeyError` for an unknown key."""
    view = _process.view()
    if key not in view:
        view = _process.whole()
    if key not in view:
        raise KeyError(unknown(key))
    return view[key]


def seconds(key: str) -> float | None:
    """The effective value of a duration, in seconds; None if the setting is None."""
    text = value(key)
    if text is None:
        return None
    if text not in _SECONDS:
        from monarch._core.config.duration import parse_duration

        _SECONDS[text] = parse_duration(text) / 1e9
    return _SECONDS[text]


def host_loss_seconds() -> float:
    """Seconds of silence after which a host is lost: the 0.7 watchdog if it is set, else `host_loss_timeout`."""
    return seconds("supervision_watchdog_timeout") or seconds("host_loss_timeout") or 0.0


def spawn_ready_seconds() -> float | None:
    """Seconds that one proc may take to get ready, the larger of the two settings; None for no limit."""
    first = seconds("host_spawn_ready_timeout")
    second = seconds("mesh_proc_spawn_max_idle")
    if not first or second == 0:
        return None
    return first if second is None else max(first, second)
