"""Inspection of a running job: stacks, states, notebooks."""
