"""The numbers that messages, answers and requests have on both sides."""

__all__ = [
    "CLOSED",
    "ERROR",
    "EXPLICIT_PORT",
    "FAILED",
    "FAILURE",
    "FIRST_ERROR",
    "GATHER",
    "NO_ANSWER",
    "OK",
    "PROC_ENDED",
    "STOP",
    "STREAM",
    "TRACED",
    "UNDELIVERABLE",
    "UNDELIVERED",
]

# Flags of a message: it stops the actor; its method gets a port to answer through; it belongs to a trace.
STOP: int
EXPLICIT_PORT: int
TRACED: int

# How a call waits for its answers.
NO_ANSWER: int
FIRST_ERROR: int
GATHER: int
STREAM: int

# What an answer is.
OK: int
ERROR: int
FAILED: int
PROC_ENDED: int
CLOSED: int
UNDELIVERED: int

# Requests that the native side sends, too.
FAILURE: int
UNDELIVERABLE: int
