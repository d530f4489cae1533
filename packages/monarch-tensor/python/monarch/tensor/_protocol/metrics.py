"""What the controller and the workers measure, as metrics of the meter `monarch.tensor`. They cost a test of a flag while nothing records.

| instrument | kind | unit | what |
|---|---|---|---|
| `commands` | counter |  | operations that the controller has sent |
| `batch_commands` | histogram |  | operations in a message |
| `lead` | gauge |  | operations that the slowest worker may be behind, at a mark |
| `fetch` | histogram | ms | from a fetch to its data, on the controller |
| `collective` | histogram | ms | a reduction on a worker, with its dimensions |
"""

from __future__ import annotations

from monarch.actor import get_meter

_METER = get_meter("monarch.tensor")

commands = _METER.create_counter("commands")
batch_commands = _METER.create_histogram("batch_commands")
lead = _METER.create_gauge("lead")
fetch_ms = _METER.create_histogram("fetch", "ms")
collective_ms = _METER.create_histogram("collective", "ms")
