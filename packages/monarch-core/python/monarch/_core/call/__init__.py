"""Calls: actors, endpoints, ports, futures, and the messages between them."""
