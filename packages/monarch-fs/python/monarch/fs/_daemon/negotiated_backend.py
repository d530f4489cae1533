"""The back end of a server process, which reports when the kernel has negotiated."""

from __future__ import annotations

from collections.abc import Callable

from monarch.fs._tree.operations import MountOptions
from monarch.fs.backends.pyfuse3 import Pyfuse3Backend


class NegotiatedBackend(Pyfuse3Backend):
    """Calls `negotiated` when the connection is set up: from then on another server can take it over."""

    negotiated: Callable[[], None]

    def set_read_ahead(self, options: MountOptions) -> None:
        super().set_read_ahead(options)
        self.negotiated()
