"""The base of transfer engines."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar


class WeightTransferInitInfo:
    pass


class WeightTransferUpdateInfo:
    pass


Init = TypeVar("Init", bound=WeightTransferInitInfo)
Update = TypeVar("Update", bound=WeightTransferUpdateInfo)


class WeightTransferEngine(ABC, Generic[Init, Update]):
    init_info_cls: type[Init]
    update_info_cls: type[Update]
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model

    def parse_init_info(self, init_dict: dict[str, Any]) -> Init:
        return self.init_info_cls(**init_dict)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))

    @abstractmethod
    def init_transfer_engine(self, init_info: Init) -> None: ...

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: Update) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...
