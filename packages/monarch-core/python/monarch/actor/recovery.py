"""Recovery: replicas that are started again when they fail."""

from monarch._core.hosts.recovery import Replicas as Replicas

__all__ = ["Replicas"]
