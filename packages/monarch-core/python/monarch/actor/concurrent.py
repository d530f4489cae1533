"""`concurrent_endpoint` under the name some scripts import it from."""

from monarch._core.call.actor import concurrent_endpoint as concurrent_endpoint

__all__ = ["concurrent_endpoint"]
