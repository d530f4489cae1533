"""`Generic` for type checkers; at run time a base class without cost, whose subscript gives the class itself.

Importing `typing` takes longer than everything else that `monarch.actor` imports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Generic as Generic
else:

    class Generic:
        __slots__ = ()

        def __class_getitem__(cls, item):
            return cls
