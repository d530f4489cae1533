"""The features of a job: found by entry points, saved with the job, started with its hosts, stopped with it."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from monarch.extension import install_hint, needs_wheel
from monarch.job._job.feature import FeatureHosts, JobFeature, Offer
from monarch.job._job.job_state import extend, host_meshes, meshes_of
from monarch.job._job.preload_feature import PreloadFeature
from monarch.job.errors import FeatureMissingError, JobError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job._job.hold import Hold
    from monarch.job._job.job_state import JobState

GROUP = "monarch.job_feature"
# The order in which features start, independent of the order of their addition; others come last.
_ORDER = ("preload", "remote_mount", "gather_mount", "telemetry", "admin")


class Carried:
    """One feature of a job. Without the wheel it stays what was saved, and is saved again."""

    def __init__(self, name: str, configured: dict[str, Any], saved: dict[str, Any], feature: JobFeature | None = None) -> None:
        self.name = name
        # The configuration of the feature at its addition: equal for equal arguments.
        self.configured = configured
        self._saved = saved
        self._feature = feature

    @property
    def feature(self) -> JobFeature:
        """The object; `FeatureMissingError` where its wheel is missing."""
        if self._feature is None:
            self._feature = feature_class(self.name).load(self._saved)
        return self._feature

    def encode(self) -> dict[str, Any]:
        """The record of the features that is saved with the job."""
        if self._feature is not None:
            self._saved = self._feature.dump()
        return {"name": self.name, "configured": self.configured, "saved": self._saved}

    def is_like(self, other: Carried) -> bool:
        return (self.name, self.configured) == (other.name, other.configured)


def feature_class(name: str) -> type[JobFeature]:
    """The subclass that an entry point names; `FeatureMissingError` where there is none."""
    from monarch.extension import BrokenEntry, load_entry

    if name == "preload":
        return PreloadFeature
    found = load_entry(GROUP, name)
    if found is None:
        raise FeatureMissingError(f"no job feature '{name}' is installed", hint=f"install the wheel that has '{name}' in the group {GROUP}")
    if isinstance(found, BrokenEntry):
        raise FeatureMissingError(f"the job feature '{name}' cannot be loaded", cause=found.describe()) from found.error
    cls = found.value
    if not (isinstance(cls, type) and issubclass(cls, JobFeature)):
        raise FeatureMissingError(f"the job feature '{name}' of {found.wheel} is no subclass of monarch.job.JobFeature, but {cls!r}")
    return cls


def is_missing(name: str) -> bool:
    """Is there no entry point of that name?"""
    from monarch.extension import entry_names

    return name not in entry_names(GROUP)


def add(carried: list[Carried], name: str, arguments: dict[str, Any]) -> None:
    """Configures a feature; nothing is started."""
    cls = feature_class(name)
    feature = cls(**arguments)
    configured = feature.dump()
    new = Carried(name, configured, configured, feature)
    # A feature with equal arguments is the same feature.
    carried[:] = [old for old in carried if old.name != name or (cls.several and not old.is_like(new))]
    carried.append(new)


def take_over(wanted: list[Carried], running: list[Carried]) -> list[Carried]:
    """Makes `running` what is wanted, keeping what is wanted unchanged; gives what has to be stopped."""
    dropped = [old for old in running if not any(old.is_like(new) for new in wanted)]
    running[:] = [next((old for old in running if old.is_like(new)), new) for new in wanted]
    return dropped


def need_hosts(carried: list[Carried]) -> bool:
    """Is there a feature whose start waits for the hosts?"""
    for one in carried:
        try:
            if feature_class(one.name).needs_hosts:
                return True
        except FeatureMissingError:  # its start reports that
            continue
    return False


def start(carried: list[Carried], hosts: FeatureHosts, state: JobState, hold: Hold | None = None) -> None:
    """Starts the features, and adds their offers to the state. An exception of a feature gets a note, unless the feature is best effort.

    With a `hold` that is not over the hosts are in a queue: features that need them promise what they offer.
    """
    is_given = hold is None or hold.is_given
    try:
        for one in sorted(carried, key=_place):
            its = hosts._replace(meshes=host_meshes(meshes_of(state)))
            waits = hold is not None and not hold.is_over and one.feature.needs_hosts
            offer = one.feature.promised(its) if waits else _start(one, its)
            if offer is not None:
                try:
                    extend(state, offer.attributes, offer.meshes)
                except (TypeError, ValueError) as e:
                    raise JobError(f"the job feature '{one.name}' offers what the job cannot have: {e}", title=hosts.title) from e
    except BaseException:
        if hold is not None and not is_given:
            hold.give(None)
        raise
    if hold is not None and not is_given:
        kept = [one for one in sorted(carried, key=_place) if one.feature.needs_hosts]
        hold.give(lambda: _keep(kept, hosts))


def _keep(carried: list[Carried], hosts: FeatureHosts) -> None:
    """Starts what was promised, when the hosts have joined."""
    for one in carried:
        try:
            one.feature.keep(hosts)
        except Exception as e:
            e.add_note(f"raised by the start of the job feature '{one.name}' of {hosts.title}")
            raise


def _place(one: Carried) -> int:
    return _ORDER.index(one.name) if one.name in _ORDER else len(_ORDER)


def _start(one: Carried, hosts: FeatureHosts) -> Offer | None:
    feature = one.feature
    try:
        if not feature.best_effort:
            return feature.start(hosts)
        return _within(feature.start_seconds, f"the start of {one.name}", lambda: feature.start(hosts))
    except Exception as e:
        if not feature.best_effort:
            e.add_note(f"raised by the start of the job feature '{one.name}' of {hosts.title}")
            raise
        warnings.warn(f"{hosts.title} runs without {one.name}: {type(e).__name__}: {e}", UserWarning, stacklevel=5)
        return None


def stop(one: Carried) -> None:
    """Stops the feature; `TimeoutError` after its `stop_seconds`."""
    feature = one.feature
    _within(feature.stop_seconds, f"the stop of {one.name}", feature.stop)


def _within(seconds: float, what: str, action: Callable[[], Any]) -> Any:
    """What the action gives or raises, on a thread of its own; `TimeoutError` if it takes longer, and the thread is left alone."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as e:  # also SystemExit: the waiter has to know
            failed.append(e)

    thread = threading.Thread(target=run, name=f"monarch-job: {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        if isinstance(failed[0], Exception):
            raise failed[0]
        raise RuntimeError(f"{what} ended with {type(failed[0]).__name__}") from failed[0]
    if not found:
        raise TimeoutError(f"{what} is not over after {seconds:g} s")
    return found[0]


# Methods that have warned in this process.
_warned: set[str] = set()


def add_best_effort(carried: list[Carried], name: str, method: str, arguments: dict[str, Any]) -> None:
    """Telemetry is best effort: a program that asks for it runs where it is not installed."""
    try:
        if not is_missing(name):
            add(carried, name, arguments)
            return
        wheel = "monarch-telemetry"
        why = f"the wheel {wheel} is not installed\nhint: {install_hint(wheel)}"
    except FeatureMissingError as e:
        why = str(e)
    if method not in _warned:
        _warned.add(method)
        warnings.warn(f"JobTrait.{method} has no effect: {why}", UserWarning, stacklevel=3)


def add_mount(carried: list[Carried], name: str, arguments: dict[str, Any]) -> None:
    if is_missing(name):
        absent(name, "monarch-fs")
    add(carried, name, arguments)


def absent(method: str, wheel: str) -> NoReturn:
    raise NotImplementedError(needs_wheel(f"JobTrait.{method}", wheel))
