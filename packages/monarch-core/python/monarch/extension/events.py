"""Events of processes: the events of a program, and their observation by other processes of the host."""

from monarch._core._native.events import Event, EventField, EventType, event_types
from monarch._core._native.events import is_on as is_recording
from monarch._core.extension.event_batch import Batch, EventColumns, EventTexts
from monarch._core.extension.recording import Observation, Observer, Reader, Recording, observe, recordings
from monarch._core.observe.tracing import emit, span

__all__ = [
    "Batch",
    "Event",
    "EventColumns",
    "EventField",
    "EventTexts",
    "EventType",
    "Observation",
    "Observer",
    "Reader",
    "Recording",
    "emit",
    "event_types",
    "is_recording",
    "observe",
    "recordings",
    "span",
]
