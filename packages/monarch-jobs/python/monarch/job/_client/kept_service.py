"""A service that the keeper of a job runs after the script has ended. The type of the entry-point group `monarch.keeper`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.actor import HostMesh

GROUP = "monarch.keeper"


class KeptService(ABC):
    """One service of a keeper, such as a mount. An entry point of the group `monarch.keeper` is a subclass without constructor arguments.

    The keeper makes one object for each (service, key), and calls `start` and `stop` one after the other, on threads of its own.
    A service by which hosts are reached has `needs_hosts = False`: it is started with no meshes, and before the keeper connects to any.
    """

    needs_hosts = True

    @abstractmethod
    def start(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Starts on the meshes of the job, or refreshes what it has started; the result is JSON for the client that asks.

        `config` is what the client has given, and the same at each call: for another `config` the keeper stops this object and makes
        another. A first `start` that raises leaves nothing behind, and the object is dropped.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends it. Called once, on request, with the job, and when all hosts are gone."""

    @abstractmethod
    def status(self) -> Mapping[str, Any]:
        """A description for people, as JSON. Called at any time from any thread; must not wait."""

    @abstractmethod
    def busy(self) -> bool:
        """Does it serve at present? A keeper whose services are idle for an hour ends without `stop`. Must not wait."""

    def left(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any], seconds: float) -> str:
        """What users still see of a service that was stopped, after `seconds` at most; by default "", for nothing.

        Called where the client that asked for the stop wants to know. A keeper that was killed may have left what ends later by itself:
        then there are seconds to wait for it, else 0.
        """
        return ""


KeptService.__module__ = "monarch.job"
