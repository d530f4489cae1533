"""Log lines that the controller writes on the workers."""

from __future__ import annotations

import logging

_logger = logging.getLogger("monarch.tensor.remote")


def log(message: object, *arguments: object, level: int = logging.WARNING) -> None:
    _logger.log(level, message, *arguments)


def set_level(level: int | str) -> None:
    _logger.setLevel(level)
