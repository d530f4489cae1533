"""The services of a keeper, by (service, key): each is started, refreshed and stopped by one request at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monarch.extension import BrokenEntry, load_entry
from monarch.job._client.kept_service import GROUP, KeptService
from monarch.job.errors import FeatureMissingError, JobError

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class _Kept:
    def __init__(self) -> None:
        # Held while a request starts or stops the service.
        self.lock = threading.Lock()
        self.service: KeptService | None = None
        self.config: dict[str, Any] = {}
        self.state = "starting"


class KeptServices:
    """`make` gives a new service by its name; entry points of `monarch.keeper` by default."""

    def __init__(self, make: Callable[[str], KeptService] | None = None) -> None:
        self._make = make or installed
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._is_closed = False

    def serve(self, service: str, key: str, config: Mapping[str, Any], hosts: Callable[[], Mapping[str, HostMesh]]) -> Mapping[str, Any]:
        """Starts or refreshes; what `start` raises. Another `config` than before replaces the service."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise JobError("the keeper is ending")
                kept = self._kept.setdefault((service, key), _Kept())
            with kept.lock:
                if kept.state == "stopping":
                    continue  # another request has stopped it meanwhile
                if kept.service is not None and kept.config != config:
                    old, kept.service = kept.service, None
                    old.stop()
                is_new = kept.service is None
                try:
                    if kept.service is None:
                        kept.config = dict(config)
                        kept.state = "starting"
                        made = self._make(service)
                    else:
                        made = kept.service
                    result = made.start(hosts(), config)
                    json.dumps(dict(result))
                except BaseException:
                    if is_new:
                        self._drop(service, key, kept)
                    raise
                kept.service = made
                kept.state = "running"
                return result

    def stop(self, service: str, key: str) -> bool:
        """False where there is no such service; what `stop` raises, and then the service is gone too."""
        with self._lock:
            kept = self._kept.get((service, key))
        if kept is None:
            return False
        with kept.lock:
            found, kept.service = kept.service, None
            if kept.state == "stopping":
                return False
            self._drop(service, key, kept)
            if found is not None:
                found.stop()
            return found is not None

    def _drop(self, service: str, key: str, kept: _Kept) -> None:
        kept.state = "stopping"
        with self._lock:
            if self._kept.get((service, key)) is kept:
                del self._kept[service, key]

    def status(self) -> list[dict[str, Any]]:
        """What a client shows."""
        with self._lock:
            kept = list(self._kept.items())
        return [
            {"service": service, "key": key, "state": one.state, "config": one.config, "detail": _status(one.service)}
            for (service, key), one in kept
        ]

    def is_busy(self) -> bool:
        """Is anything served or being started?"""
        with self._lock:
            kept = list(self._kept.values())
        return any(one.service is None or _is_busy(one.service) for one in kept)

    def stop_all(self, seconds: float) -> list[str]:
        """Stops all at once; gives what went wrong, services that are not over after `seconds` among it. Nothing starts any more."""
        with self._lock:
            self._is_closed = True
            places = list(self._kept)
        failed: list[str] = []
        pending: dict[threading.Thread, str] = {}
        for service, key in places:

            def stop(service: str = service, key: str = key) -> None:
                try:
                    self.stop(service, key)
                except Exception as e:
                    failed.append(f"{service} {key}: {type(e).__name__}: {e}")

            thread = threading.Thread(target=stop, name=f"monarch-keeper-stop {service} {key}", daemon=True)
            thread.start()
            pending[thread] = f"{service} {key}"
        for thread, place in pending.items():
            thread.join(seconds)
            if thread.is_alive():
                failed.append(f"{place}: is not over after {seconds:g} s")
        return failed


def _status(service: KeptService | None) -> dict[str, Any]:
    if service is None:
        return {}
    try:
        return dict(service.status())
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def _is_busy(service: KeptService) -> bool:
    try:
        return service.busy()
    except Exception:
        return True  # a keeper must not end because of an error


def installed(name: str) -> KeptService:
    """A new service of the entry point; `FeatureMissingError` where no wheel has it, or where it cannot be loaded."""
    found = load_entry(GROUP, name)
    if found is None:
        raise FeatureMissingError(f"no service '{name}' is installed", hint=f"install the wheel that has '{name}' in the group {GROUP}")
    if isinstance(found, BrokenEntry):
        raise FeatureMissingError(f"the service '{name}' cannot be loaded", cause=found.describe()) from found.error
    made: object = found.value() if isinstance(found.value, type) else found.value
    if not isinstance(made, KeptService):
        raise FeatureMissingError(f"the service '{name}' of {found.wheel} is no monarch.job.KeptService, but {found.value!r}")
    return made
