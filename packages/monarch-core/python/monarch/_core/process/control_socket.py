"""The control socket of the job's client, through which other clients of this user reach the job.

A handle that is pickled outside a message may be unpickled by another client: the process that pickles it opens the socket first, once.
"""

from __future__ import annotations

from monarch._core._native.protocol import FIRST_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Process as NativeProcess

# The request to the client to open its socket.
OPEN_CONTROL_SOCKET = 7


class ControlSocket:
    """The socket of the client `job`, as a process of the job opens it."""

    __slots__ = ("_is_open", "_native")

    def __init__(self, native: NativeProcess) -> None:
        self._native = native
        self._is_open = False

    def open(self, job: int) -> None:
        if job == self._native.uid:
            self._native.open_control_socket()
        elif not self._is_open:
            cell = self._native.cell(FIRST_ERROR, 1, [job])
            self._native.request(job, OPEN_CONTROL_SOCKET, b"", cell.slot)
            cell.wait()
            self._is_open = True
