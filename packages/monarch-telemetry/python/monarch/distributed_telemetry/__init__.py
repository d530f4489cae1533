"""SQL over a running job under the names of torchmonarch 0.7; `monarch.telemetry` has more."""

from monarch.telemetry import QueryEngine

__all__ = ["QueryEngine"]
