"""Telemetry as a feature of jobs."""
