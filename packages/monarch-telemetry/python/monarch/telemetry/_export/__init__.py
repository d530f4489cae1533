"""What leaves the collectors: OTLP, capture archives and Perfetto traces, and the masking of secrets."""
