"""Actors in the process they live in: their threads, loops, messages and ends."""
