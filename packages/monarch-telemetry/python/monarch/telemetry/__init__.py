"""SQL queries over a running job: the public names. Each is loaded on first use."""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.telemetry._diagnose.diagnosis import Diagnosis as Diagnosis
    from monarch.telemetry._engine.query_engine import QueryEngine as QueryEngine
    from monarch.telemetry._http.client import QueryEngineClient as QueryEngineClient
    from monarch.telemetry._stacks.merged import StackReport as StackReport
    from monarch.telemetry.errors import PartialAnswer as PartialAnswer
    from monarch.telemetry.errors import QueryError as QueryError
    from monarch.telemetry.errors import QueryLimit as QueryLimit
    from monarch.telemetry.errors import QueryRejected as QueryRejected
    from monarch.telemetry.errors import QueryTimeout as QueryTimeout
    from monarch.telemetry.errors import TelemetryError as TelemetryError
    from monarch.telemetry.running import Telemetry as Telemetry
    from monarch.telemetry.running import diagnose as diagnose
    from monarch.telemetry.running import query as query
    from monarch.telemetry.running import record as record
    from monarch.telemetry.running import stacks as stacks
    from monarch.telemetry.running import start as start

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "_diagnose.diagnosis": ("Diagnosis",),
    "_engine.query_engine": ("QueryEngine",),
    "_http.client": ("QueryEngineClient",),
    "_stacks.merged": ("StackReport",),
    "errors": ("PartialAnswer", "QueryError", "QueryLimit", "QueryRejected", "QueryTimeout", "TelemetryError"),
    "running": ("Telemetry", "diagnose", "query", "record", "stacks", "start"),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES)
