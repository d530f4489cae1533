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

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        return self.collective_rpc("execute_model", args=(scheduler_output,), non_block=non_block)[0]

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        return self.collective_rpc("sample_tokens", args=(grammar_output,), non_block=non_block)[0]

    @abstractmethod
    def check_health(self) -> None: ...

    def shutdown(self) -> None:
        self.collective_rpc("shutdown")
