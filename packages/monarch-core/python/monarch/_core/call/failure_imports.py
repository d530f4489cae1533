"""What a process needs when something fails or ends, imported while it can still open files.

Texts and classes of failures are loaded late, because most programs never need them. A process that has run out of descriptors could not
read them from their files: the failure would be lost in an `OSError` about a file of ours, and in the client so would its report. So a
client imports this module when it starts, and a proc before its first actor.
"""

from __future__ import annotations

import copy
import signal

from monarch._core.call import answer, lost_host, value_mesh
from monarch._core.errors import errors, table
from monarch._core.pickle import pickling, remote_exception, state

# Used by what fails only.
del answer, copy, errors, lost_host, pickling, remote_exception, signal, state, table, value_mesh
