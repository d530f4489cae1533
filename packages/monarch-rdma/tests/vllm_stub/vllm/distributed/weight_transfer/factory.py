"""The registry of transfer engines."""

from typing import Any


class WeightTransferEngineFactory:
    engines: dict[str, Any] = {}

    @classmethod
    def register_engine(cls, name: str, engine: type) -> None:
        cls.engines[name] = engine
