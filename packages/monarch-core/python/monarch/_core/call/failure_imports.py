"""The modules that a process needs for failures and ends, imported while the process can still open files.

Texts and classes of failures are loaded late, because most programs never need them. A process without free descriptors could not read
these modules: an `OSError` about a file of Monarch would replace the failure, and in the client also its report. So a client imports this
module when it starts, and a proc before its first actor.
"""

from __future__ import annotations

import copy
import signal

from monarch._core.call import answer, expired, lost_host, partial_values, value_mesh
from monarch._core.errors import errors, table
from monarch._core.pickle import pickling, remote_exception, state

# Only code for failures uses these modules.
del answer, copy, errors, expired, lost_host, partial_values, pickling, remote_exception, signal, state, table, value_mesh
