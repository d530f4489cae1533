"""The waits of this process: for each thread and task the calls that have not answered it, and the locks that another thread holds.

The frames of the threads have them, and are read when the stacks are taken, with the GIL: before that a process pays nothing. A wait for a
call is a frame of `Future.get` or `Future.__await__`, which has the future, and so the called ranks that have not answered.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from monarch._core.actor.place import coroutine_frames
from monarch._core.call.future import Future
from monarch._core.observe.held_locks import Locks
from monarch._core.observe.kernel_waits import kernel_waits
from monarch._core.observe.lookups import lookups
from monarch._core.observe.process_groups import process_groups
from monarch._core.observe.raised import described, raised
from monarch._core.observe.reports import reports
from monarch._core.observe.resources import resources
from monarch._core.observe.software import software
from monarch._core.observe.supplies import supplies
from monarch._core.observe.thread_waits import ThreadWaits
from monarch._core.process.current import known_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import Any

    from monarch._core.errors.failure import MeshFailure
    from monarch._core.process.parts import Owned
    from monarch._core.process.process import LocalProcess

# The most frames of a thread or task, the most tasks of a loop, and the most ranks of one wait.
_MOST_FRAMES = 100
_MOST_TASKS = 1000
_MOST_RANKS = 64
# The most waits of a process, those that block an actor first, and the most frames that each has.
_MOST_WAITS = 256
_MOST_SHOWN = 16
# The most failures, those that each mesh has before others have more, and the most characters of a text of one.
_MOST_FAILURES = 64
_SHARE = 8
_MOST_TEXT = 2000

# Not generic, so that its methods have types.
_future: type[Future[Any]] = Future
_WAITING = {_future.get.__code__, _future.__await__.__code__}


def waits_and_failures(process: LocalProcess) -> dict[str, Any]:
    """What the looks find, as members of the answer with the stacks; `left_out` has the reason of each that is missing."""
    left_out: dict[str, str] = {}
    found = _members(
        left_out,
        waits=lambda: waits(process),
        failures=lambda: failures(process),
        concurrent=lambda: concurrent(process),
        resources=lambda: {**resources(), **_members(left_out, **_waits_as_resources(process))},
        groups=process_groups,
        software=software,
        reports=lambda: reports(process, left_out),
        supplies=supplies,
        lookups=lookups,
    )
    return {**found, "left_out": left_out}


def _members(left_out: dict[str, str], **looks: Callable[[], Any]) -> dict[str, Any]:
    """What each look finds, by its name."""
    found: dict[str, Any] = {}
    for name, look in looks.items():
        try:
            found[name] = look()
        except Exception as e:  # the frames and objects of other threads change while they are read
            left_out[name] = described(e)
    return found


def waits(process: LocalProcess) -> list[dict[str, Any]]:
    """The waits, each with the thread that waits. `blocks`: the actor of the thread handles no other message meanwhile."""
    sides = {actor.thread: actor.loop_side for actor in process.actors.values()}
    # The thread that looks waits for nothing.
    innermost = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    stacks = {ident: list(_outward(frame)) for ident, frame in innermost.items() if ident != get_ident()}
    tasks = {ident: _tasks(frames) for ident, frames in stacks.items()}
    found: list[dict[str, Any]] = []
    for ident, frames in stacks.items():
        if (wait := _wait(frames)) is not None:
            found.append({"thread": ident, "blocks": True, **wait})
        side = sides.get(ident)
        blocking = _awaited(side.main) if side is not None and side.current is not None else set[int]()
        is_shown = False
        for task in tasks[ident]:
            coroutines = coroutine_frames(task)[::-1]
            if (wait := _wait(coroutines)) is not None:
                blocks = id(task) in blocking
                is_shown |= blocks
                found.append({"thread": ident, "blocks": blocks, "frames": _shown_frames(coroutines), **wait})
        if blocking and side is not None and not is_shown:
            # The endpoint waits for something else than a call.
            found.append({"thread": ident, "blocks": True, "frames": _shown_frames(coroutine_frames(side.main)[::-1])})
    locks = Locks({ident: [*frames, *(f for task in tasks[ident] for f in coroutine_frames(task))] for ident, frames in stacks.items()})
    found += [{"thread": ident, "blocks": True, **lock} for ident, frames in stacks.items() if (lock := locks.wait(ident, frames))]
    threads = ThreadWaits(stacks)
    found += [{"thread": ident, "blocks": True, **wait} for ident in stacks if (wait := threads.wait(ident))]
    return sorted(found, key=lambda one: not one["blocks"])[:_MOST_WAITS]


def _shown_frames(coroutines: list[FrameType]) -> list[tuple[str, int, str]]:
    """The calls of a task, whose thread itself stands in its event loop."""
    return [(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname) for frame in coroutines[:_MOST_SHOWN]]


def concurrent(process: LocalProcess) -> dict[str, list[str]]:
    """The endpoints that actors run beside their messages, by the mesh of the actor: a call to one does not wait for the others."""
    sides = {actor.info.mailbox: actor.loop_side for actor in process.actors.values()}
    return {
        f"{mesh:016x}": sorted({call.method for call in list(side.concurrent.values())})
        for mesh, side in sides.items()
        if side is not None and side.concurrent
    }


def failures(process: LocalProcess) -> list[dict[str, Any]]:
    """The failed ranks of the meshes that this process owns now; of too many, those of the newest meshes, and some of each mesh."""
    found: list[dict[str, Any]] = []
    for mesh, failed in _shown(process):
        for rank, failure in failed:
            first = failure
            while first.cause is not None:
                first = first.cause
            reason = first.reason
            found.append(
                {
                    "mesh": f"{mesh.info.uid:016x}",
                    "name": mesh.info.name,
                    "class": mesh.info.class_name or None,
                    "size": len(mesh.info.procs),
                    "age": process.execution.now() - mesh.since,
                    "rank": rank,
                    "actor": first.actor,
                    "is_cause": first is failure,
                    "kind": reason.kind,
                    "code": reason.code,
                    "signal": reason.signal,
                    "detail": (reason.detail or "")[:_MOST_TEXT],
                    "traceback": (first.__core__.traceback or "")[-_MOST_TEXT:],
                    "output": [line[:_MOST_TEXT] for line in first.__core__.output[-3:]],
                    "host": first.host,
                    "pid": first.pid,
                }
            )
    return found


def _shown(process: LocalProcess) -> list[tuple[Owned, list[tuple[int, MeshFailure]]]]:
    """The failures that are shown, by mesh, the oldest mesh first."""
    meshes = [(mesh, list(mesh.info.failed.items())) for mesh in reversed(list(process.meshes.owned.values())) if mesh.info.failed]
    left = _MOST_FAILURES
    shares: list[int] = []
    for _, failed in meshes:
        shares.append(min(len(failed), _SHARE, left))
        left -= shares[-1]
    for i, (_, failed) in enumerate(meshes):
        more = min(len(failed) - shares[i], left)
        shares[i] += more
        left -= more
    return [(mesh, failed[:share]) for (mesh, failed), share in zip(meshes, shares, strict=True) if share][::-1]


def _waits_as_resources(process: LocalProcess) -> dict[str, Callable[[], Any]]:
    # Other threads of a program often wait for events by design.
    actors = list(process.actors.values())
    loops = [actor.loop_side.loop for actor in actors if actor.loop_side is not None]
    return {"kernel_waits": lambda: kernel_waits({actor.thread for actor in actors}), "raised": lambda: raised(loops)}


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _wait(frames: Iterable[FrameType]) -> dict[str, Any] | None:
    """The call for which the innermost of these frames waits; `frames` are innermost first."""
    for frame in frames:
        if frame.f_code in _WAITING:
            future = frame.f_locals.get("self")
            return None if future is None else _call(future, frame.f_locals.get("timeout"))
    return None


def _call(future: Future[Any], timeout: float | None) -> dict[str, Any] | None:
    """The call of a future, and the ranks without an answer; None for one without a call, or with its answer."""
    wait = future.__core__
    if known_process() is None or wait.called is None or wait.call is None:
        return None
    late = wait.called.late(wait.call, wait.rank)
    if not late.ranks:
        return None
    return {
        "call": wait.call.slot,
        "endpoint": late.endpoint,
        "name": late.mesh,
        "mesh": f"{late.mailbox:016x}",
        "size": late.size,
        "late": len(late.ranks),
        "ranks": [[rank, f"{proc:016x}"] for rank, proc in late.ranks[:_MOST_RANKS]],
        "timeout": timeout,
    }


def _tasks(frames: list[FrameType]) -> list[Any]:
    """The tasks of the event loop that runs in these frames."""
    events: Any = sys.modules.get("asyncio.base_events")
    if events is None:
        return []
    run = events.BaseEventLoop.run_forever.__code__
    loop = next((frame.f_locals.get("self") for frame in frames if frame.f_code is run), None)
    if loop is None:
        return []
    try:
        return list(sys.modules["asyncio"].all_tasks(loop))[:_MOST_TASKS]
    except RuntimeError:  # other threads make tasks all the time
        return []


def _awaited(task: Any) -> set[int]:
    """The ids of a task and of those for which it waits, directly, by `gather`, or by other tasks."""
    found: set[int] = set()
    waiting = [task]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in found:
            continue
        found.add(id(one))
        waiting += [getattr(one, "_fut_waiter", None), *(getattr(one, "_children", None) or ())]
    return found
