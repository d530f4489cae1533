"""A stand-in with the names of vLLM that docs/cookbook/inference-engine.md uses, and a worker with a model of two layers.

It has the signatures that the public documentation of vLLM gives, and nothing of its code.
"""
