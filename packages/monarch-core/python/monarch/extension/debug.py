"""The debugger for programs that are no actors: what stands in a child process of a proc is listed and attached to as an actor is."""

from monarch._core.extension.debug_session import ProgramSession, open_session

__all__ = ["ProgramSession", "open_session"]
