"""Calls: actors, endpoints, ports, futures, and the messages between them.

An adverb of an endpoint checks the arguments against the signature, pickles them once for all ranks, and passes the message to the native
runtime. The result is a `Future`, which any thread and any event loop can wait for. This layer needs `pickle` and `process`; it does not
start processes. Every future completes: with results, or with an error when the receiver has ended.
"""
