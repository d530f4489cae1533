"""Configuration of Monarch: read, set and parametrize the settings of this process."""

from monarch._core.config.address import ChannelTransport
from monarch._core.config.config import (
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
    parametrize_config,
    parametrize_config_pointwise,
    reload_config_from_env,
    reset_config_to_defaults,
)
from monarch._core.config.setting import Encoding

__all__ = [
    "ChannelTransport",
    "Encoding",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "parametrize_config",
    "parametrize_config_pointwise",
    "reload_config_from_env",
    "reset_config_to_defaults",
]
