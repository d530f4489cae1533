"""Entry points of other wheels, for a wheel that has a group of its own: found by name, and loaded once a process."""

from monarch._core.config.entry_points import Broken, Loaded, load, names

__all__ = ["Broken", "Loaded", "load", "names"]
