"""Credentials under a passphrase."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.job import _sealed


@pytest.fixture(autouse=True, scope="module")
def cheap():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_sealed._SCRYPT, "n", 2)
        yield


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=500), st.text(min_size=1))
def test_round_trip(data: bytes, passphrase: str) -> None:
    sealed = _sealed.seal(data, passphrase)
    assert _sealed.unseal(sealed, passphrase) == data
    assert _sealed.seal(data, passphrase) != sealed
    assert len(data) < 4 or data not in sealed[len(_sealed.MAGIC) :]


def test_every_changed_byte_and_another_passphrase_are_refused() -> None:
    sealed = _sealed.seal(b"secret", "right")
    with pytest.raises(_sealed.WrongPassphrase):
        _sealed.unseal(sealed, "wrong")
    for i in range(len(_sealed.MAGIC), len(sealed)):
        with pytest.raises(_sealed.WrongPassphrase):
            _sealed.unseal(sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :], "right")
    with pytest.raises(_sealed.WrongPassphrase):
        _sealed.unseal(sealed + b"x", "right")
    for bad in (b"", b"PK", _sealed.MAGIC, sealed[:40]):
        with pytest.raises(ValueError, match="no exported credentials"):
            _sealed.unseal(bad, "right")
