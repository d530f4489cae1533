"""Uses each point of the extension interface, and sees each fail as it should."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

from monarch.actor import Actor, endpoint, this_host
from monarch.extension import (
    ProcEnd,
    PromiseDropped,
    RequestError,
    ask,
    end_of,
    events,
    member,
    needs_wheel,
    promise,
    seconds,
    setting,
    watch,
)
from parrot import observer


class Talker(Actor):
    @endpoint
    def proc(self) -> int:
        return member().proc

    @endpoint
    def say(self, word: str) -> None:
        with events.span("speech"):
            events.emit(word, loud=True)


def main() -> None:
    for point in (promises, membership, requests, observers, settings, commands):
        point()
        print(f"{point.__name__}: ok")


def promises() -> None:
    kept = promise("a word")
    kept.set_result("hello")
    assert kept.future.get() == "hello"
    dropped = promise("a word that never comes").future
    gc.collect()
    error = raised(PromiseDropped, dropped.get)
    assert "a word that never comes" in str(error), error


def membership() -> None:
    procs = this_host().spawn_procs(name="talkers")
    proc = procs.spawn("talker", Talker).proc.call_one().get()
    assert proc != member().proc and end_of(proc) is None
    end = watch(proc)
    procs.stop().get()
    found = end.get()
    assert isinstance(found, ProcEnd) and found.reason.kind == "stopped", found


def requests() -> None:
    procs = this_host().spawn_procs(name="talkers")
    proc = procs.spawn("talker", Talker).proc.call_one().get()
    assert ask(proc, "parrot.echo", b"hello").get() == b"hellohello"
    assert "LookupError: no such word" in str(raised(RequestError, ask(proc, "parrot.raises").get))
    gone = str(raised(RequestError, ask(proc, "parrot.gone").get))
    assert "parrot 1.2.3" in gone and "'parrot.gone'" in gone and "ModuleNotFoundError" in gone, gone
    assert "no wheel" in str(raised(RequestError, ask(proc, "parrot.unknown").get))
    # In the client too, which goes on.
    assert ask(member().proc, "parrot.echo", b"me").get() == b"meme"
    other = this_host().spawn_procs(name="mortal")
    victim = other.spawn("talker", Talker).proc.call_one().get()
    died = raised(RequestError, ask(victim, "parrot.dies").get)
    assert isinstance(died, RequestError) and died.end is not None and died.end.reason.code == 7, died
    assert ask(proc, "parrot.echo", b"still").get() == b"stillstill"
    procs.stop().get()


def observers() -> None:
    assert any(t.name == "user.event" and t.emitted and t.fields[0].name == "name" for t in events.event_types())
    procs = this_host().spawn_procs(name="speakers")
    talker = procs.spawn("talker", Talker)
    proc = talker.proc.call_one().get()
    heard, broken = events.observe("parrot", every=0.01), events.observe("parrot.breaks", every=0.01)
    while broken.error is None or not observer.heard:
        talker.say.call_one("hello").get()
    heard.stop()
    assert set(observer.heard) == {"hello"} and heard.error is None
    assert broken.name == "'parrot.breaks' of parrot 1.2.3" and "too many" in str(broken.error), broken.name
    gone = str(raised(ImportError, lambda: events.observe("parrot.gone")))
    assert "parrot 1.2.3" in gone and "ModuleNotFoundError" in gone, gone
    assert "parrot.breaks" in str(raised(LookupError, lambda: events.observe("cuckoo")))
    procs.stop().get()
    # What an ended process has recorded is still there.
    (ended,) = [recording for recording in events.recordings() if recording.proc == proc and recording.ended]
    spoken = [event.fields["name"] for event in ended.reader().read() if event.name == "span.enter"]
    assert set(spoken) == {"speech"}, spoken


def settings() -> None:
    assert setting("log_filter") is not None and seconds("host_loss_timeout") == 3.0
    assert "monarch-rdma" in needs_wheel("buffers", "monarch-rdma")


def commands() -> None:
    def monarch(*arguments: str) -> str:
        code = "from monarch.extension.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True).stdout

    assert monarch("parrot", "hello") == "hello hello\n"
    assert "parrot" in monarch("--help")
    doctor = monarch("doctor")
    assert "can speak" in doctor and "parrot 1.2.3" in doctor and "parrot.no_such_module" in doctor, doctor


def raised(kind: type[BaseException], function: Callable[[], object]) -> BaseException:
    try:
        function()
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


if __name__ == "__main__":
    # The root does not handle the death of `mortal`: it is meant.
    import monarch.actor

    def handled(failure: object) -> None:
        del failure

    monarch.actor.unhandled_fault_hook = handled  # type: ignore[assignment]
    main()
