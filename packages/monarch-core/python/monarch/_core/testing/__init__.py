"""The test kit: universes, faults, isolation."""
