"""Writes docs/events.md: the description of events, and the table of their types from the native module."""

from __future__ import annotations

from collections.abc import Iterator

from monarch.extension.events import EventType, event_types

INTRODUCTION = """\
# Events

A process can record its actions as events: calls, actors, links, failures, and events of the program. Use events to see what a killed
process did last, or to observe all processes of a host:

- The *flight recorder* (setting `flight_recorder`): each process of the job records. `MeshFailure.recent_events` has the last events of a
  killed proc.
- *Observers* (`monarch.extension.events.observe`, [extending-events.md](extending-events.md#events)): a program receives all events of a
  host.

Recording is off by default; an event then costs one load and one test. Events are stored in a [ring](event-ring.md) of shared memory,
which outlives the process.

```python
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.config import configured
from monarch.extension.events import emit
import monarch.actor
import os, signal

monarch.actor.unhandled_fault_hook = lambda failure: None  # the death below is meant


class Trainer(Actor):
    @endpoint
    def step(self, number: int):
        emit("loading", step=number)
        os.kill(os.getpid(), signal.SIGKILL)


with configured(flight_recorder=True):
    trainer = this_host().spawn_procs(name="train").spawn("trainer", Trainer)
    try:
        trainer.step.call_one(7).get()
    except SupervisionError as e:
        last = e.failure.recent_events[-1]
        assert last.name == "user.event" and last.fields == {"name": "loading", "fields": '{"step": 7}'}
```

`monarch doctor --crash` prints the last events of processes that were killed or have failed: of all jobs of the user on this machine, or
of the job of one client, named by its process number. The agent keeps these events until it ends itself, which is at the end of the
client for a job, and at the end of the worker for a host. If no events are left, the command states this reason.

## What is not an event

Payloads of messages are not events, and neither is output of procs ([logs.md](logs.md)). Ports and answers have no events of their own:
the events of the call have their times. `traced` functions are no spans.

## The types

Names, numbers and fields are stable; a type may get more fields at its end. If a process did not have a field yet, the field is 0 or an
empty text. An `id` is a number of 64 bits, of a process, a mesh, a call or a span. Types that are marked *reserved* are not emitted yet.

"""


def text() -> str:
    """The page, without the note on its source."""
    return "".join((INTRODUCTION, *_lines()))


def _lines() -> Iterator[str]:
    for event in event_types():
        yield f"### `{event.name}`\n\n{event.about}{'' if event.emitted else ' *Reserved.*'}\n\n"
        yield from _fields(event)
        yield "\n" if event is not event_types()[-1] else ""


def _fields(event: EventType) -> Iterator[str]:
    yield "| Field | Unit | Meaning |\n|---|---|---|\n"
    for field in event.fields:
        yield f"| `{field.name}` | {field.unit} | {field.about} |\n"
