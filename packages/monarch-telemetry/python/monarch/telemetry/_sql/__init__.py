"""Statements: which are allowed, how their plans are cut, and how parts of answers are merged."""
