"""Programs that a proc runs, and that are no members of the job: their requests to the proc, and the handlers of other wheels there."""

from __future__ import annotations

from monarch._core.config.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.extension.program_handlers import Program as Program
    from monarch._core.extension.program_handlers import ProgramHandler as ProgramHandler
    from monarch._core.extension.program_handlers import ProgramHandlers as ProgramHandlers
    from monarch._core.extension.program_handlers import ProgramMesh as ProgramMesh
    from monarch._core.extension.program_handlers import RunEnded as RunEnded
    from monarch._core.extension.program_link import MAX_BLOB_BYTES as MAX_BLOB_BYTES
    from monarch._core.extension.program_link import VARIABLE as VARIABLE
    from monarch._core.extension.program_link import ProgramLink as ProgramLink
    from monarch._core.extension.program_link import answer_in as answer_in
    from monarch._core.extension.program_link import program_link as program_link

# Programs load no handlers.
_HOMES = {
    "extension.program_handlers": ("Program", "ProgramHandler", "ProgramHandlers", "ProgramMesh", "RunEnded"),
    "extension.program_link": ("MAX_BLOB_BYTES", "VARIABLE", "ProgramLink", "answer_in", "program_link"),
}

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES, "monarch._core")
