"""A limit for hosts that join, and an error in the place of the runtime's."""

from __future__ import annotations

import socket

import pytest

from monarch.actor import AttachError, attach_to_workers
from monarch.extension.mesh import explain_failure, joined_by


class _Explained(AttachError):
    pass


@pytest.mark.parametrize("is_explained", [False, True])
def test_hosts_join_by_the_deadline_or_fail(is_explained: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # The server accepts, and never answers.
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with joined_by(0.0):
            mesh = attach_to_workers(workers=[address], secret=b"x" * 32)
        explain_failure(mesh, lambda error: _Explained("explained", error.hosts) if is_explained else None)
        # The limit of the setting is beyond that of this test.
        with pytest.raises(AttachError) as raised:
            mesh.initialized.get()
        assert list(raised.value.hosts) == [address]
        assert isinstance(raised.value, _Explained) == is_explained
