"""Profiles of a whole job."""

from monarch.telemetry._http.profile import profile

__all__ = ["profile"]
