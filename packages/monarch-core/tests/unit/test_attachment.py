"""The join errors of an attachment that no caller has received."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from monarch._core._native.protocol import ERROR, OK
from monarch._core.hosts.attachment import Attachment


def test_host_lost_before_its_answer_is_unreported() -> None:
    results = [None, SimpleNamespace(status=OK), SimpleNamespace(status=ERROR)]
    state = SimpleNamespace(failure=None, ids=(1, 2, 3), cell=SimpleNamespace(results=lambda: results))
    attachment = cast("Attachment", state)
    assert Attachment.unreported(attachment) == {1, 3}
    state.failure = ValueError("raised by initialized.get()")
    assert Attachment.unreported(attachment) == set()
