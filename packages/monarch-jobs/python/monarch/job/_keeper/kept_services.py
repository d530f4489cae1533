"""The services of a keeper, by (service, key): each is started, refreshed and stopped by one request at a time.

The services are recorded in the folder of the keeper. A keeper that finds such a record has followed one that was killed, and starts the
services again before it answers requests about them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monarch.extension import BrokenEntry, load_entry
from monarch.job._client import kept_record
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
        # The reason why it could not be started again.
        self.error = ""
        # The hosts of its last start.
        self.hosts: Mapping[str, HostMesh] = {}


class KeptServices:
    """`make` gives a new service by its name; entry points of `monarch.keeper` by default. `folder` has the record, or there is none."""

    def __init__(self, make: Callable[[str], KeptService] | None = None, folder: str | None = None) -> None:
        self._make = make or installed
        self._folder = folder
        self._recorded = kept_record.load(folder) if folder is not None else {}
        # Services of an earlier keeper, parts of which may outlive it.
        self._inherited = set(self._recorded)
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._is_closed = False

    def restore(self, hosts: Callable[[], Mapping[str, HostMesh]]) -> None:
        """Starts what is recorded, on threads; requests about such a service wait for it. A service that fails has the state "failed"."""
        for (service, key), config in self._recorded.items():
            kept = self._kept[service, key] = _Kept()
            kept.config = config
            kept.lock.acquire()
            threading.Thread(
                target=self._start_again, args=(service, key, kept, hosts), name=f"monarch-keeper-restore {service} {key}", daemon=True
            ).start()

    def _start_again(self, service: str, key: str, kept: _Kept, hosts: Callable[[], Mapping[str, HostMesh]]) -> None:
        """Called with the lock of the service, which it releases."""
        try:
            made = self._make(service) if kept.service is None else kept.service
            self._start(made, kept, kept.config, hosts)
            kept.service, kept.state = made, "running"
            print(f"{service} {key} is served again", flush=True)
        except Exception as e:
            if kept.service is None:
                kept.state, kept.error = "failed", f"{type(e).__name__}: {e}"
            print(f"{service} {key} cannot be served again: {type(e).__name__}: {e}", flush=True)
        finally:
            kept.lock.release()

    def _start(
        self, made: KeptService, kept: _Kept, config: Mapping[str, Any], hosts: Callable[[], Mapping[str, HostMesh]]
    ) -> Mapping[str, Any]:
        now: Mapping[str, HostMesh] = hosts() if made.needs_hosts else {}
        result = made.start(now, config)
        kept.hosts = dict(now)
        return result

    def needs_hosts(self, service: str) -> bool:
        """Does this service run on hosts? True also for one that cannot be loaded."""
        try:
            return self._make(service).needs_hosts
        except Exception:
            return True

    def renew(self, hosts: Callable[[], Mapping[str, HostMesh]]) -> None:
        """Starts again, on threads, the services whose hosts are others now, and those that failed to start again."""
        with self._lock:
            places = list(self._kept.items())
        for (service, key), kept in places:
            threading.Thread(
                target=self._renew, args=(service, key, kept, hosts), name=f"monarch-keeper-renew {service} {key}", daemon=True
            ).start()

    def _renew(self, service: str, key: str, kept: _Kept, hosts: Callable[[], Mapping[str, HostMesh]]) -> None:
        kept.lock.acquire()
        has_hosts = kept.service is not None and kept.service.needs_hosts
        if kept.state == "failed" or (kept.state == "running" and has_hosts and not _is_same(kept.hosts, hosts)):
            self._start_again(service, key, kept, hosts)
        else:
            kept.lock.release()

    def _record(self, service: str, key: str, config: Mapping[str, Any] | None) -> None:
        """Keeps the configuration for the next keeper; None takes it out."""
        with self._lock:
            if self._folder is None or self._recorded.get((service, key)) == config:
                return
            if config is None:
                del self._recorded[service, key]
            else:
                self._recorded[service, key] = dict(config)
            try:
                kept_record.save(self._folder, self._recorded)
            except OSError as e:
                print(f"the services cannot be recorded: {e}", flush=True)

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
                    result = self._start(made, kept, config, hosts)
                    json.dumps(dict(result))
                except BaseException:
                    if is_new:
                        self._drop(service, key, kept)
                        self._record(service, key, None)
                    raise
                kept.service = made
                kept.state = "running"
                self._record(service, key, config)
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
            was_kept = found is not None or kept.state == "failed"
            self._drop(service, key, kept)
            if not self._is_closed:
                self._record(service, key, None)
            if found is not None:
                found.stop()
            return was_kept

    def check_end(
        self, service: str, key: str, config: Mapping[str, Any], hosts: Callable[[], Mapping[str, HostMesh]], wait: float
    ) -> None:
        """Called after `stop`: `JobError` with what users still see of the service, for `wait` seconds where another keeper began it."""
        made = self._make(service)
        left = made.left(hosts() if made.needs_hosts else {}, config, wait if (service, key) in self._inherited else 0.0)
        if left:
            raise JobError(left)

    def config(self, service: str, key: str) -> dict[str, Any] | None:
        """The configuration of a service that is kept."""
        with self._lock:
            kept = self._kept.get((service, key))
        return None if kept is None else kept.config

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
            {"service": service, "key": key, "state": one.state, "config": one.config, "detail": _status(one)}
            for (service, key), one in kept
        ]

    def is_busy(self) -> bool:
        """Is anything served or being started?"""
        with self._lock:
            kept = list(self._kept.values())
        return any(one.state == "starting" if one.service is None else _is_busy(one.service) for one in kept)

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


def _is_same(before: Mapping[str, HostMesh], hosts: Callable[[], Mapping[str, HostMesh]]) -> bool:
    """Handles of the same hosts are the same objects. True where the hosts cannot be looked at."""
    try:
        now = hosts()
    except Exception as e:
        print(f"the hosts cannot be looked at: {type(e).__name__}: {e}", flush=True)
        return True
    return before.keys() == now.keys() and all(before[name] is now[name] for name in now)


def _status(kept: _Kept) -> dict[str, Any]:
    service = kept.service
    if service is None:
        return {"error": kept.error} if kept.state == "failed" else {}
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
