"""The dashboard: static files, made from packages/monarch-telemetry/dashboard when the wheel is built."""
