"""`monarch rdma`: the entry point of core's group `monarch.cli`."""

from __future__ import annotations

from monarch.rdma._cli.group import command as command
