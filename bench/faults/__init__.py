"""Faults as small real programs, and healthy jobs beside them: what `monarch diagnose` is measured with."""
