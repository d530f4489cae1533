"""A worker with a small model, and with the methods that an executor calls."""

from typing import Any

import torch
from torch import nn

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear

WIDTH, KEYS = 16, 8


class WorkerWrapperBase:
    def __init__(self, rpc_rank: int) -> None:
        self.rpc_rank = rpc_rank

    def init_worker(self, all_kwargs: list[dict[str, Any]]) -> None:
        own = all_kwargs[self.rpc_rank]
        self.rank, self.config = own["rank"], own["vllm_config"]

    def init_device(self) -> None:
        self.device = torch.device("cpu")

    def load_model(self) -> None:
        ranks = self.config.parallel_config.world_size
        attention = nn.Module()
        attention.qkv_proj = QKVParallelLinear([WIDTH, KEYS, KEYS], WIDTH, self.rank, ranks)
        attention.o_proj = RowParallelLinear(WIDTH, WIDTH // ranks, self.rank, ranks)
        self.model = nn.Module()
        self.model.attention, self.model.norm = attention, nn.LayerNorm(WIDTH)

    def execute_method(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, method)(*args, **kwargs) if isinstance(method, str) else method(self, *args, **kwargs)

    def check_health(self) -> None:
        pass

    def execute_model(self, scheduler_output: Any) -> Any:
        return self.rank, scheduler_output

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self.rank, grammar_output

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        kind = WeightTransferEngineFactory.engines[self.config.weight_transfer_config.backend]
        self.engine = kind(self.config.weight_transfer_config, self.config, self.device, self.model)
        self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        self.engine.start_weight_update()

    def start_draft_weight_update(self) -> None:
        if not self.engine.supports_draft_weight_update:
            raise RuntimeError("the engine updates no draft model")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.engine.update_weights(update_info)

    def finish_weight_update(self) -> None:
        self.engine.finish_weight_update()
