"""Tensors as pictures, for notebooks."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import torch

_LEAST = 8


class Picture:
    """A PNG, which notebooks show."""

    def __init__(self, png: bytes, size: tuple[int, int]) -> None:
        self._png = png
        self._size = size

    def _repr_png_(self) -> bytes:
        return self._png

    def __repr__(self) -> str:
        return f"<a picture of {self._size[0]} by {self._size[1]} pixels>"


def shown(value: Any) -> Any:
    """Pictures for tensors that have the shape of one, in lists and tuples too; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return _picture(value) or value
    if isinstance(value, list | tuple):
        return [shown(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _picture(tensor: torch.Tensor) -> Picture | None:
    if tensor.dim() == 2 and min(tensor.shape) >= _LEAST:
        pixels = tensor[None]
    elif tensor.dim() == 3 and tensor.shape[0] in (1, 3, 4) and min(tensor.shape[1:]) >= _LEAST:
        pixels = tensor
    else:
        return None
    if tensor.is_complex() or not tensor.numel():
        return None
    if tensor.dtype != torch.uint8:
        numbers = tensor.to(torch.float32)
        if not bool(numbers.isfinite().all()) or float(numbers.min()) < 0 or float(numbers.max()) > 1:
            return None
        pixels = (pixels.to(torch.float32) * 255).round().to(torch.uint8)
    channels, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).contiguous().reshape(height, width * channels)
    data = b"".join(b"\0" + bytes(row.tolist()) for row in rows)
    kind = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(data)) + _chunk(b"IEND", b"")
    return Picture(png, (width, height))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
