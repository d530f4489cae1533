"""Credentials under a passphrase."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.job._files import export


@pytest.fixture(autouse=True, scope="module")
def cheap():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(export._SCRYPT, "n", 2)
        yield


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=500), st.text(min_size=1))
def test_round_trip(data: bytes, passphrase: str) -> None:
    sealed = export.seal(data, passphrase)
    assert export.unseal(sealed, passphrase) == data
    assert export.seal(data, passphrase) != sealed
    assert len(data) < 4 or data not in sealed[len(export.MAGIC) :]


def test_every_changed_byte_and_another_passphrase_are_refused() -> None:
    sealed = export.seal(b"secret", "right")
    with pytest.raises(export.WrongPassphrase):
        export.unseal(sealed, "wrong")
    for i in range(len(export.MAGIC), len(sealed)):
        with pytest.raises(export.WrongPassphrase):
            export.unseal(sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :], "right")
    with pytest.raises(export.WrongPassphrase):
        export.unseal(sealed + b"x", "right")
    for bad in (b"", b"PK", export.MAGIC, sealed[:40]):
        with pytest.raises(ValueError, match="no exported credentials"):
            export.unseal(bad, "right")
