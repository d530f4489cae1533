"""Errors: the closed list of codes, texts and hints.

`table.py` has the rows of core. Another wheel adds rows by an entry point of the group `monarch.errors`. Every text begins with the most
specific fact, and the hint is on a line of its own. `docs/errors.md` is made from the rows.
"""
