"""Errors: the closed list of codes, texts and hints."""
