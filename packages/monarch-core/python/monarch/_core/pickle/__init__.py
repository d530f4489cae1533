"""Pickling of messages: by reference, by value, and large buffers out of band."""
