"""The trace that a call belongs to (W3C Trace Context): it goes with the messages of the call, and events of the processes carry it."""

from monarch._core._native import TraceContext
from monarch._core.observe.trace_context import trace_context, use_trace

__all__ = ["TraceContext", "trace_context", "use_trace"]
