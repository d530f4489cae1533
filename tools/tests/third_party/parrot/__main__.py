"""Uses each point of the extension interface, and sees each fail as it should."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from queue import Queue

from monarch.actor import Actor, ActorError, MonarchError, endpoint, this_host
from monarch.config import configure, configured
from monarch.extension import (
    BrokenEntry,
    LoadedEntry,
    ProcEnd,
    ProcJoined,
    PromiseDropped,
    RequestError,
    ask,
    end_of,
    entry_names,
    error_text,
    listen,
    load_entry,
    member,
    needs_wheel,
    promise,
    seconds,
    setting,
    watch,
)
from parrot import hooks
from parrot.errors import WordError


class Talker(Actor):
    @endpoint
    def proc(self) -> int:
        return member().proc

    @endpoint
    def unknown(self, word: str) -> None:
        raise WordError(word)

    @endpoint
    def told(self) -> tuple[list[str], str | None]:
        return hooks.told, os.environ.get("PARROT_CAGE")

    @endpoint
    def words(self) -> int:
        return setting("parrot_words")


def main() -> None:
    for point in (entry_points, promises, membership, listeners, process_setup, requests, settings, errors, commands):
        point()
        print(f"{point.__name__}: ok")


def entry_points() -> None:
    assert entry_names("monarch.requests") == ["parrot.dies", "parrot.echo", "parrot.gone", "parrot.raises"]
    found = load_entry("monarch.requests", "parrot.echo")
    assert isinstance(found, LoadedEntry) and found.wheel == "parrot 1.2.3" and found.value.__name__ == "echo", found
    gone = load_entry("monarch.requests", "parrot.gone")
    assert isinstance(gone, BrokenEntry) and "Traceback" in gone.report() and "pip install -U parrot" in gone.todo, gone


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


def listeners() -> None:
    events: Queue[object] = Queue()

    def breaks(event: object) -> None:
        raise LookupError("no such member")

    broken, listening = listen(breaks), listen(events.put)
    procs = this_host().spawn_procs(name="talkers")
    joined = events.get()
    assert isinstance(joined, ProcJoined) and joined.name == "talkers" and joined.host == member().host, joined
    assert procs.spawn("talker", Talker).proc.call_one().get() == joined.proc
    procs.stop().get()
    ended = events.get()
    assert isinstance(ended, ProcEnd) and ended.proc == joined.proc, ended
    assert not broken.is_active() and listening.is_active()
    listening.stop()
    assert not listening.is_active()


def process_setup() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("monarch.extension").addHandler(handler)
    procs = this_host().spawn_procs({"gpus": 2}, name="greeted")
    assert procs.spawn("talker", Talker).told.call().get().values() == [(["hello greeted 0"], "open"), (["hello greeted 1"], "open")]
    procs.stop().get()
    logging.getLogger("monarch.extension").removeHandler(handler)
    # The two that fail were left out when the first proc was spawned, and for good.
    assert records == [] and "PARROT_CAGE" not in os.environ, records


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


def settings() -> None:
    assert setting("log_filter") is not None and seconds("host_loss_timeout") == 3.0
    assert "monarch-rdma" in needs_wheel("buffers", "monarch-rdma")
    assert setting("parrot_words") == 3 and seconds("parrot_pause") == 1.0
    with configured(parrot_words=4):
        procs = this_host().spawn_procs(name="talkers")
        assert procs.spawn("talker", Talker).words.call_one().get() == 4
        procs.stop().get()
    assert "parrot_words" in str(raised(TypeError, lambda: configure(parrot_words="many")))
    # The declaration that takes a key of core is left out, and named where a key of such a kind is asked for.
    wrong = str(raised(ValueError, lambda: configure(parrot_cage="here")))
    assert "parrot 1.2.3: entry point 'parrot-taken'" in wrong and "belongs to monarch-core" in wrong, wrong
    assert setting("exit_grace") == "500ms"


def errors() -> None:
    error = WordError("hello")
    assert str(error) == "parrot does not know hello\n  hint: say it twice" and (error.code, error.hint) == ("parrot_word", "say it twice")
    procs = this_host().spawn_procs(name="talkers")
    talker = procs.spawn("talker", Talker)
    caught = raised(ActorError, talker.unknown.call_one("hello").get)
    assert isinstance(caught, ActorError) and isinstance(caught.exception, WordError) and caught.exception.hint == "say it twice", caught
    procs.stop().get()
    # The row that takes a code of core is left out.
    assert "spawn again" in str(MonarchError("gone", code="host_lost").hint)
    assert "no wheel declares" in str(raised(KeyError, lambda: error_text("parrot_phrase")))


def commands() -> None:
    def monarch(*arguments: str) -> str:
        code = "from monarch.extension.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True).stdout

    assert monarch("parrot", "hello") == "hello hello\n"
    assert "parrot" in monarch("--help")
    doctor = monarch("doctor")
    assert "can speak" in doctor and "parrot 1.2.3" in doctor and "parrot.no_such_module" in doctor, doctor
    assert "LookupError: the cage is lost" in doctor and "TimeLimit: contribute: not done within 0.2 s" in doctor, doctor
    assert "belongs to monarch-core" in doctor and "Traceback" in doctor and "pip install -U parrot" in doctor, doctor


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
