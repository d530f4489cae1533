"""Handlers of requests, found by their entry points in every process of a job."""

from __future__ import annotations

import os
from typing import NoReturn

from monarch.extension import Request


def echo(request: Request) -> bytes:
    return request.body + request.body


def raises(request: Request) -> bytes:
    raise LookupError("no such word")


def dies(request: Request) -> NoReturn:
    os._exit(7)
