"""The debugger for programs that are no actors: a program in a child process of a proc is listed and attached to like an actor."""

from monarch._core.debug.thread_pdb import Terminal, ThreadPdb, sessions
from monarch._core.extension.debug_session import ProgramSession, open_session

__all__ = ["ProgramSession", "Terminal", "ThreadPdb", "open_session", "sessions"]
