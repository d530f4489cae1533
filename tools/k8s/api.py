"""Requests to the API server, without a client library."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from tools.k8s.certificates import Authority
from tools.k8s.slot import API_PORT

_TIMEOUT_S = 3.0


class Api:
    """The API server, accessed as the administrator `admin` of `authority`."""

    def __init__(self, address: str, authority: Authority, user: str) -> None:
        self._address = address
        self._context = ssl.create_default_context(cafile=str(authority.certificate("ca")))
        self._context.load_cert_chain(authority.certificate(user), authority.key(user))

    def get(self, path: str) -> str | None:
        """The body of the answer; None for no answer, or a status other than 200."""
        connection = http.client.HTTPSConnection(self._address, API_PORT, timeout=_TIMEOUT_S, context=self._context)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return text if answer.status == 200 else None

    def object(self, path: str) -> Any:
        """The object at a path; None if there is none."""
        text = self.get(path)
        return None if text is None else json.loads(text)
