"""Uses each point of the extension interface, including its failures."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from queue import Queue

from monarch.actor import Actor, ActorError, ActorMesh, Channel, HostMesh, MonarchError, SupervisionError, endpoint, send, this_host
from monarch.actor.testing import local_hosts, patch_tensor_engine
from monarch.config import configure, configured
from monarch.extension import (
    BrokenEntry,
    LoadedEntry,
    ProcEnd,
    ProcId,
    ProcJoined,
    PromiseDropped,
    RequestError,
    ServiceError,
    ask,
    end_of,
    entry_names,
    error_text,
    events,
    listen,
    load_entry,
    member,
    needs_wheel,
    promise,
    seconds,
    service,
    setting,
    watch,
)
from monarch.extension import channel as extension_channel
from monarch.extension.command import CannotStart, CommandLine, Finished, TerminalProcess, run_command
from monarch.extension.inspection import proc_settings, set_log_level
from monarch.extension.mesh import HealedHosts, healer_of, mesh_view, owned_meshes, set_healer, stop_mesh
from monarch.extension.pickling import dumps, dumps_for_same_program, loads
from monarch.extension.trace import TraceContext, trace_context, use_trace
from monarch.job import JobError, LocalJob, add_feature, job_loads
from parrot import hooks, observer
from parrot.errors import WordError
from parrot.mesh import Echoes


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

    @endpoint
    def say(self, word: str) -> None:
        with events.span("speech"):
            events.emit(word, loud=True)

    @endpoint
    def traced(self) -> tuple[int, int] | None:
        found = trace_context()
        return (found.trace_id, found.span_id) if found else None

    @endpoint
    def die(self, word: str) -> None:
        events.emit(word, loud=True)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint(propagate="cached")
    def repeat(self, word: str) -> str:
        return word


def main() -> None:
    for point in (
        entry_points,
        promises,
        membership,
        listeners,
        observers,
        traces,
        values,
        collectors,
        looking,
        process_setup,
        requests,
        meshes,
        healers,
        services,
        programs,
        helper_processes,
        features,
        settings,
        errors,
        commands,
    ):
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
    # Native code that drops a promise fails it too.
    given = promise("a native word")
    capsule = given.native_handle(bytes.decode)
    raised(RuntimeError, lambda: given.set_result("hello"))
    del capsule
    assert "a native word" in str(raised(PromiseDropped, given.future.get))


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
    # The two failing hooks were left out when the first proc was spawned, and for good.
    assert records == [] and "PARROT_CAGE" not in os.environ, records


def requests() -> None:
    procs = this_host().spawn_procs(name="talkers")
    proc = procs.spawn("talker", Talker).proc.call_one().get()
    assert ask(proc, "parrot.echo", b"hello").get() == b"hellohello"
    assert "LookupError: no such word" in str(raised(RequestError, ask(proc, "parrot.raises").get))
    gone = str(raised(RequestError, ask(proc, "parrot.gone").get))
    assert "parrot 1.2.3" in gone and "'parrot.gone'" in gone and "ModuleNotFoundError" in gone, gone
    assert "no wheel" in str(raised(RequestError, ask(proc, "parrot.unknown").get))
    # The client fails too, and continues.
    assert ask(member().proc, "parrot.echo", b"me").get() == b"meme"
    other = this_host().spawn_procs(name="mortal")
    victim = other.spawn("talker", Talker).proc.call_one().get()
    died = raised(RequestError, ask(victim, "parrot.dies").get)
    assert isinstance(died, RequestError) and died.end is not None and died.end.reason.code == 7, died
    assert ask(proc, "parrot.echo", b"still").get() == b"stillstill"
    procs.stop().get()


def meshes() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="talkers")
    with procs.activate() as active:
        assert active == "2 procs are active"
    talkers = procs.spawn("talker", Talker)
    proc = talkers.slice(gpus=1).proc.call_one().get()
    assert procs.slice(gpus=1).to_table().startswith(f"talkers[1] {ProcId(proc)} on <")
    propagate, words = talkers.repeat.rref("hi")
    assert propagate == "cached" and list(words.values()) == ["hihi", "hihi"]
    raised(TypeError, lambda: talkers.repeat.rref("hi", "again"))
    # `send` accepts an object that calls as an endpoint does; the answers have the ranks.
    port, receiver = Channel[str].open()
    send(Echoes(), ("hi",), {"times": 2}, port)
    assert sorted(receiver.ranked().recv().get() for _ in range(2)) == [(0, "hihi"), (1, "hihi")]
    assert "no words" in str(raised(ValueError, lambda: send(Echoes(), (), {}, port)))
    assert "expected an endpoint" in str(raised(TypeError, lambda: send(procs, (), {}, port)))  # pyright: ignore[reportArgumentType]
    # The exception of a method is the caller's; a wheel that cannot be loaded, or that is missing, is named.
    assert "no ranks for 2 procs" in str(raised(ArithmeticError, procs.rank_tensors))
    broken = str(raised(NotImplementedError, lambda: procs.rank_tensor("gpus")))
    assert "parrot 1.2.3" in broken and "'rank_tensor' of monarch.mesh" in broken, broken
    with patch_tensor_engine(Talker) as simulated:
        assert "monarch-tensor" in str(raised(NotImplementedError, lambda: simulated(procs)))
    procs.stop().get()


def healers() -> None:
    # Hosts that this program has attached, and their replacement: for a part of the mesh, the same part of the healed one.
    with local_hosts(2) as hosts, local_hosts(2) as others:
        part = hosts.slice(hosts=slice(1, 2))
        assert healer_of(part) is None
        set_healer(hosts, lambda seconds: HealedHosts(others, frozenset({1})))
        heal = healer_of(part)
        assert heal is not None and heal(1.0) == HealedHosts(others.slice(hosts=slice(1, 2)), frozenset({0}))
        set_healer(hosts, lambda seconds: HealedHosts(others.slice(hosts=0)))
        raised(ValueError, lambda: heal_again(hosts))


def heal_again(hosts: HostMesh) -> HealedHosts | None:
    heal = healer_of(hosts)
    return None if heal is None else heal(1.0)


def services() -> None:
    perch = service(this_host(), "shared_perch")
    assert perch.sit.call_one("kea").get() == ["kea"]
    assert service(this_host(), "shared_perch").sit.call_one("lory").get() == ["kea", "lory"]
    port, receiver = Channel[str].open()
    service(this_host(), "own_perch").tell.call_one(port).get()
    assert receiver.recv().get() == "red"
    assert "cannot have" in str(raised(ServiceError, lambda: service(this_host(), "own_perch", {"color": "blue"})))
    # An ended service is started again; the old handle fails.
    pid = perch.pid.call_one().get()
    raised(SupervisionError, perch.leave.call_one().get)
    assert service(this_host(), "shared_perch").pid.call_one().get() != pid
    raised(SupervisionError, perch.pid.call_one().get)
    for how, why in (("raises", "no wood"), ("dies", "code 8"), ("hangs", "did not start within 0.5 s")):
        error = raised(ServiceError, lambda how=how: service(this_host(), "broken_perch", {"how": how}))
        assert why in str(error), error
    assert "no_such_module" in str(raised(ServiceError, lambda: service(this_host(), "gone_perch")))
    assert "not a monarch.extension.Service" in str(raised(ServiceError, lambda: service(this_host(), "odd_perch")))


def programs() -> None:
    def run(script: str, **options: float) -> Finished:
        return asyncio.run(run_command(CommandLine(("sh", "-c", script), os.environ), **options))

    assert run("echo polly; echo oops >&2; exit 3") == (3, b"polly\n", b"oops\n", 0)
    assert run("kill -9 $$").code == 137
    assert run("trap : INT; while :; do sleep 100; done", timeout=0.2, grace=0.1).code == 124
    error = raised(CannotStart, lambda: asyncio.run(run_command(CommandLine(("no-such-bird",), {}))))
    assert isinstance(error, CannotStart) and error.word == "no-such-bird", error

    async def in_terminal() -> tuple[bytes, int | None]:
        terminal = TerminalProcess((24, 80))
        await terminal.start(CommandLine(("sh", "-c", "test -t 0 && echo tty; exit 4"), os.environ))
        shown, code = b"", None
        while code is None:
            data, code = await terminal.read()
            shown += data
        await terminal.close()
        return shown, code

    assert asyncio.run(in_terminal()) == (b"tty\r\n", 4)


HELPER = """
import socket, sys
from monarch.extension.channel import Channel, ChannelEnded

channel = Channel(socket.socket(fileno=int(sys.argv[1])))
channel.check_peer()
try:
    while True:
        message = channel.take()
        channel.send({"word": message.head["word"] * 2}, message.blob)
except ChannelEnded:
    pass
"""


def helper_processes() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        helper = subprocess.Popen([sys.executable, "-P", "-c", HELPER, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    channel = extension_channel.Channel(ours)
    channel.send({"word": "ko"}, b"data")
    answer = channel.take(timeout=30.0)
    assert (answer.head, answer.blob) == ({"word": "koko"}, b"data")
    helper.kill()
    helper.wait()
    assert "ended" in str(raised(extension_channel.ChannelEnded, lambda: channel.take(timeout=30.0)))
    channel.close()


def features() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, state_file = Path(folder, "cage"), os.path.join(folder, "state.json")
        job = LocalJob(("perch",))
        raised(ValueError, lambda: add_feature(job, "cage", path=str(file), bars=0))
        add_feature(job, "cage", path=str(file), bars=4)
        assert not file.exists() and job.state(state_file).cage == str(file)
        assert file.read_text(encoding="utf-8") == "4 bars around perch"
        # The data saved with the job is there again, without the arguments.
        assert [one["saved"]["starts"] for one in json.loads(job.dumps())["features"]] == [1]
        assert job_loads(job.dumps()).state(None).cage == str(file)
        job.kill()
        assert not file.exists()
        _broken_features()


def _broken_features() -> None:
    job = LocalJob()
    assert "no job feature 'fish'" in str(raised(JobError, lambda: add_feature(job, "fish")))
    broken = str(raised(JobError, lambda: add_feature(job, "gone_cage")))
    assert "parrot 1.2.3" in broken and "no_such_module" in broken, broken
    add_feature(job, "raises")
    error = raised(LookupError, lambda: job.state(None))
    assert "the job feature 'raises'" in error.__notes__[0], error.__notes__
    job.kill()
    job = LocalJob()
    add_feature(job, "hangs")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert "hosts" in job.state(None)
    assert "runs without hangs: TimeoutError" in str(caught[0].message), caught
    assert "could not stop hangs: TimeoutError" in str(raised(JobError, job.kill)) and not job.active


def observers() -> None:
    assert any(t.name == "user.event" and t.emitted and t.fields[0].name == "name" for t in events.event_types())
    procs = this_host().spawn_procs(name="speakers")
    talker = procs.spawn("talker", Talker)
    proc = talker.proc.call_one().get()
    heard, broken = events.observe("parrot", every=0.01), events.observe("parrot.breaks", every=0.01)
    while broken.error is None or not observer.heard:
        talker.say.call_one("hello").get()
    assert events.is_recording()
    heard.stop()
    assert set(observer.heard) == {"hello"} and heard.error is None
    assert broken.name == "'parrot.breaks' of parrot 1.2.3" and "too many" in str(broken.error), broken.name
    gone = str(raised(ImportError, lambda: events.observe("parrot.gone")))
    assert "parrot 1.2.3" in gone and "ModuleNotFoundError" in gone, gone
    assert "parrot.breaks" in str(raised(LookupError, lambda: events.observe("cuckoo")))
    procs.stop().get()
    # The events of an ended process are still there.
    (ended,) = [recording for recording in events.recordings() if recording.proc == proc and recording.ended]
    spoken = [event.fields["name"] for event in ended.reader().read() if event.name == "span.enter"]
    assert set(spoken) == {"speech"}, spoken


def traces() -> None:
    procs = this_host().spawn_procs(name="traced")
    talker = procs.spawn("talker", Talker)
    with use_trace(TraceContext(5, 7)):
        trace_id, span_id = talker.traced.call_one().get()
    assert trace_id == 5 and span_id not in (0, 7)
    assert talker.traced.call_one().get() is None and trace_context() is None
    procs.stop().get()


def values() -> None:
    pickled, parts = dumps({"small": 1, "large": b"x" * 100_000})
    assert len(pickled) < 1000 and sum(len(part) for part in parts) == 100_000
    assert loads(pickled, parts) == {"small": 1, "large": b"x" * 100_000}

    # Definitions of this program are the same objects for the same program; a function without a name is a copy.
    pickled, parts = dumps_for_same_program([Talker, values, lambda: Talker, b"x" * 1000])
    talker, function, get, data = loads(pickled, parts)
    assert (talker, function, get(), data) == (Talker, values, Talker, b"x" * 1000) and b"unknown" not in pickled


def looking() -> None:
    # Settings and log level of another process, and the end of a mesh by its number.
    with configured(stop_grace_period="7s"):
        procs = this_host().spawn_procs(name="looked_at")
        procs.initialized.get()
    [proc] = mesh_view(procs).procs
    states = {state.name: state for state in proc_settings(proc)}
    assert (states["stop_grace_period"].value, states["stop_grace_period"].source) == ("7s", "client"), states["stop_grace_period"]
    assert states["parrot_words"].default == 3
    set_log_level(proc, 30).get()
    [mesh] = [one.mesh for one in owned_meshes() if one.name == "looked_at"]
    stop_mesh(mesh, "looked at").get()
    raised(RequestError, lambda: proc_settings(proc))
    raised(LookupError, lambda: stop_mesh(mesh))


def collectors() -> None:
    # On each host a service drains the rings of this job, of living processes and of ended ones.
    def collector() -> ActorMesh:
        return service(this_host(), "collector", {"job": int(member().job)})

    collect = collector()
    talker = this_host().spawn_procs(name="talkers").spawn("talker", Talker)
    victim = this_host().spawn_procs(name="mortal").spawn("talker", Talker)
    living, dead = talker.pid.call_one().get(), victim.pid.call_one().get()
    raised(SupervisionError, victim.die.call_one("help").get)
    talker.say.call_one("good morning").get()
    while dead not in collect.dead.call_one().get():
        talker.say.call_one("good morning").get()
    # The last batch of a process holds all of its words. The ring of a living process is drained at a pace of its own.
    assert collect.who.call_one("help").get() == {dead}
    while not (greeted := collect.who.call_one("good morning").get()):
        talker.say.call_one("good morning").get()
    assert greeted == {living}
    talker.say.call_one("good night").get()
    assert living in collect.now.call_one().get() and collect.who.call_one("good night").get() == {living}
    # A killed service is started again, and finds the events that the rings still have.
    raised(SupervisionError, collect.leave.call_one().get)
    collect = collector()
    while not collect.who.call_one("good morning").get():
        talker.say.call_one("good morning").get()
    assert collect.who.call_one("help").get() <= {dead}


def settings() -> None:
    assert setting("log_filter") is not None and seconds("host_loss_timeout") == 3.0
    assert "monarch-rdma" in needs_wheel("buffers", "monarch-rdma")
    assert setting("parrot_words") == 3 and seconds("parrot_pause") == 1.0
    with configured(parrot_words=4):
        procs = this_host().spawn_procs(name="talkers")
        assert procs.spawn("talker", Talker).words.call_one().get() == 4
        procs.stop().get()
    assert "parrot_words" in str(raised(TypeError, lambda: configure(parrot_words="many")))
    # A declaration with a key of core is left out, and named when code uses a key with its prefix.
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
    # A row with a code of core is left out.
    assert "spawn again" in str(MonarchError("gone", code="host_lost").hint)
    assert "no wheel declares" in str(raised(KeyError, lambda: error_text("parrot_phrase")))


def commands() -> None:
    def monarch(*arguments: str) -> str:
        code = "from monarch.extension.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True).stdout

    assert monarch("parrot", "hello") == "hello hello\n"
    assert "parrot" in monarch("--help")
    assert '=== cage[0]\n[{"words": "ps --here --without {client}' in monarch("ps") and "cage" not in monarch("ps", "--here")
    first, second = json.loads(monarch("doctor", "--json"))[-2:]
    assert (first, second) == ({"on": "cage[0]", "words": "doctor --here --json"}, {"on": "cage[1]", "error": "cage[1]: it is locked"})
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
    # The root does not handle the death of `mortal`, which is intended.
    import monarch.actor

    def handled(failure: object) -> None:
        del failure

    monarch.actor.unhandled_fault_hook = handled  # type: ignore[assignment]
    main()
