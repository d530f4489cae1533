"""Exports of collectors: OTLP, capture archives and Perfetto traces, and the masking of secrets."""
