"""The test kit: doubles for actors, fresh interpreters, simulated time, and checks for leftovers."""

from monarch._core._native import hold_gil as hold_gil
from monarch._core.start.local_hosts import LocalHosts as LocalHosts
from monarch._core.start.local_hosts import local_hosts as local_hosts
from monarch._core.testing.fault import Fault as Fault
from monarch._core.testing.fault import fault as fault
from monarch._core.testing.isolation import isolated as isolated
from monarch._core.testing.leftover import assert_clean as assert_clean
from monarch._core.testing.patching import get_actor_class as get_actor_class
from monarch._core.testing.patching import get_actor_mock_registry_state as get_actor_mock_registry_state
from monarch._core.testing.patching import get_tensor_engine_factory as get_tensor_engine_factory
from monarch._core.testing.patching import get_tensor_engine_mock_registry_state as get_tensor_engine_mock_registry_state
from monarch._core.testing.patching import patch_actor as patch_actor
from monarch._core.testing.patching import patch_tensor_engine as patch_tensor_engine
from monarch._core.testing.patching import set_actor_mock_registry_state as set_actor_mock_registry_state
from monarch._core.testing.patching import set_tensor_engine_mock_registry_state as set_tensor_engine_mock_registry_state
from monarch._core.testing.universe import Universe as Universe

__all__ = [
    "Fault",
    "LocalHosts",
    "Universe",
    "assert_clean",
    "fault",
    "get_actor_class",
    "get_actor_mock_registry_state",
    "get_tensor_engine_factory",
    "get_tensor_engine_mock_registry_state",
    "hold_gil",
    "isolated",
    "local_hosts",
    "patch_actor",
    "patch_tensor_engine",
    "set_actor_mock_registry_state",
    "set_tensor_engine_mock_registry_state",
]
