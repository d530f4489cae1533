"""Does a backend do what every backend does? `conformance` runs the life cycle against it, for schedulers of other wheels too.

    python -m monarch.job.testing MODULE.ATTRIBUTE

The attribute is a function that makes a new, equal job each time. Everything runs in an empty directory with a `MONARCH_HOME` of its own;
nothing is left if it passes.
"""

from __future__ import annotations

from monarch.job.testing.suite import conformance as conformance

__all__ = ["conformance"]
