"""Writes docs/events.md: the description of events, and the table of their types from the native module."""

from __future__ import annotations

from collections.abc import Iterator

from monarch.extension.events import EventType, event_types

INTRODUCTION = """\
# Events

A process records what it does as events: calls, actors, links, failures, and what the program adds. Events lie in a ring of shared memory,
which outlives the process. They serve two purposes:

- The *flight recorder* (setting `flight_recorder`): each process of the job records, and what a killed proc did last is in
  `MeshFailure.recent_events`.
- *Observers* (`monarch.extension.events.observe`, [extending.md](extending.md#events)): a program that gets all events of a host.

`monarch doctor --crash` prints the last events of processes that were killed or that have failed, of all jobs of the user on the machine,
or of those whose client is named by its process number. A flight recorder ends with the agent that keeps it: with the client of a job, or
the agent of a host. The command gives this reason where nothing is left.

Recording is off by default. An event then costs one load and one test.

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

## The ring

The ring of a process is a memory file without a name (`memfd`). The process has it mapped, and its agent has the descriptor:

| what | where it is decided |
|---|---|
| made | by the process, when it begins to record; the descriptor goes to the agent over the link |
| read | by any process of the host and the user, from `/proc/<agent>/fd/<number>`; the agent sends the number |
| found | the ring of the agent counts how often the set of rings of its host has changed: an observer asks the agent when it has |
| kept | by the agent: as long as the process lives, and of the last 16 that have ended |
| gone | when the agent has ended, in whatever way: the kernel frees the file with its last descriptor, and nothing is left to remove |

A ring has slots of 128 bytes for `flight_recorder_events` events, 16,384 if nothing else is set, and 420 KiB beside them: 2.5 MiB in all.
The kernel provides what was written to. Of a slot's bytes 8 are a sequence number, 8 the time, 8 type, number of fields and
thread, 24 the trace ([extending.md](extending.md#traces)), and 80 are fields.

- A writer takes a number by one atomic addition, marks the slot of that number as being written, stores the record, and publishes it.
  A writer takes no lock, makes no system call, allocates nothing, and does not need the GIL. Threads do not wait for each other.
- A full ring overwrites its oldest events. Readers count them by the numbers that they did not get (`lost`).
- Two threads whose numbers are a whole round apart may want the same slot. The second one writes nothing, and its event counts as lost.
- A reader copies a slot and looks at the sequence number before and after. It skips what was overwritten meanwhile, and what its writer
  never finished, and counts both. A record that is being written is waited for, at most one second, and as long as less than half of the
  ring waits behind it.
- Names (of methods, meshes, spans) are stored once, and found by their hash. A name for which there is no room is a text.
- Texts (log lines, fields as JSON) lie in 256 KiB that are overwritten in turn. A text is cut at 4,096 bytes. A field whose text has been
  overwritten is None: a text has a hash, which the reader checks.
- A forked child records nothing: its parent's ring is turned off in it by the fork itself.
- The size of the file is sealed, so no reader finds it shorter than it was. A reader checks all that it reads: a ring may be damaged.

The time is that of the monotonic clock; a reader adds the offset to the epoch that the process had when it began to record.

`python bench/events.py` measures the costs.

## What is not an event

Payloads of messages, and output of procs ([logs.md](logs.md)). Ports and answers have no events of their own: the events of the call have
their times. `traced` functions are no spans.

## The types

Names, numbers and fields are stable: a type may get more fields at its end. A field is 0, or an empty text, in an event whose process
did not have the field yet. An `id` is a number of 64 bits (of a process, a mesh, a call, a
span). The types that are marked *reserved* are not emitted yet.

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
