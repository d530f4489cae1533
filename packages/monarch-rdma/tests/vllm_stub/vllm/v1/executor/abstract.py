"""The base of executors."""

from abc import ABC, abstractmethod
from typing import Any


class Executor(ABC):
    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self._init_executor()

    @abstractmethod
    def _init_executor(self) -> None: ...

    @abstractmethod
    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any: ...

    @abstractmethod
    def check_health(self) -> None: ...

    def shutdown(self) -> None:
        self.collective_rpc("shutdown")
