"""For packages whose names are loaded on first use, as those of this project are."""

from monarch._core.config.facade import lazy_names

__all__ = ["lazy_names"]
