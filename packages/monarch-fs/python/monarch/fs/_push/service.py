"""The service of pushes, by its entry point of the group `monarch.service`: a process on each host, for each job."""

from __future__ import annotations

from monarch.extension import Service
from monarch.fs._push.push_host import PushHost

SERVICE = Service(PushHost)
# Its name in the entry point.
NAME = "push"
