"""The basis of other wheels: promises, membership, requests, services, events, bulk memory, healing.

The public names are those of `monarch.extension`; other wheels import no other part of core. An entry point of another wheel that fails to
load is logged and reported by `monarch doctor`, and core continues without it.
"""
