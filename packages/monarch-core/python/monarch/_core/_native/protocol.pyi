"""The numbers of the protocol of messages, answers and requests, which Rust and Python share."""

__all__ = [
    "CLOSED",
    "DEADLINE",
    "ERROR",
    "EXPIRED",
    "EXPLICIT_PORT",
    "FAILED",
    "FIRST_ERROR",
    "GATHER",
    "NO_ANSWER",
    "OK",
    "ONLY_ANSWER",
    "PROC_ENDED",
    "STOP",
    "STREAM",
    "TRACED",
    "UNDELIVERABLE",
    "UNDELIVERED",
]

# Flags of a message: the message stops the actor; its method gets a port for the answer; the message belongs to a trace.
STOP: int
EXPLICIT_PORT: int
TRACED: int

# The first byte of the event that cancels an endpoint at its deadline.
EXPIRED: int

# The ways in which a call waits for its answers.
NO_ANSWER: int
FIRST_ERROR: int
GATHER: int
STREAM: int
ONLY_ANSWER: int

# The kinds of an answer.
OK: int
ERROR: int
FAILED: int
PROC_ENDED: int
CLOSED: int
UNDELIVERED: int
DEADLINE: int

# A request that only the native runtime sends.
UNDELIVERABLE: int
