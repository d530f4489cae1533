"""The trace of a call (W3C Trace Context): the messages of the call and the events of its processes carry it."""

from monarch._core._native import TraceContext
from monarch._core.observe.trace_context import trace_context, use_trace

__all__ = ["TraceContext", "trace_context", "use_trace"]
