"""Every exception class, every text of the table, and the pickling of exceptions."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import signal
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.errors import errors, extension
from monarch._core.errors import failure as failure_module
from monarch._core.errors import table as error_table
from monarch._core.errors import text as text_module
from monarch._core.errors.errors import (
    ActorError,
    AttachError,
    AuthenticationError,
    DeliveryError,
    MonarchError,
    SpawnError,
    SupervisionError,
    VersionMismatch,
    received_actor_error,
)
from monarch._core.errors.failure import ExitReason, MeshFailure
from monarch._core.errors.table import ERROR_TABLE, ROWS
from monarch._core.pickle import pickling
from monarch._core.pickle.remote_exception import HEADER, pack_exception

WORK = "<root>.<train.Trainer work{'gpus': 1/4}>"
ACTOR_FAILED = r"The actor .* and all its descendants have failed"

REASONS = {
    "raised": (ExitReason("raised", detail="ValueError: no"), "ValueError: no"),
    "exit_code": (ExitReason("exit_code", code=3), "the process this actor was running on exited with non-zero code 3"),
    "returned": (ExitReason("returned", code=0), "the process this actor was running on exited with code 0 while actors were running"),
    "signal": (ExitReason("signal", signal=9), "the process this actor was running on failed: Killed(sig=9)"),
    "oom": (
        ExitReason("oom", signal=9, detail="/job"),
        "the process this actor was running on failed: Killed(sig=9), out of memory in cgroup /job",
    ),
    "host_lost": (ExitReason("host_lost", detail="silent for 3s"), "host h1 lost: silent for 3s"),
    "link_lost": (ExitReason("link_lost", detail="connection reset"), "no route to h1: connection reset"),
    "client_lost": (ExitReason("client_lost", detail="it has ended"), "client of its job lost: it has ended"),
    "stopped": (ExitReason("stopped", detail="done"), "stopped: done"),
    "orphaned": (
        ExitReason("orphaned", detail="<root>.<m.Owner owner>"),
        "timed out reaching controller <root>.<m.Owner owner> for mesh work. Assuming controller's proc is dead",
    ),
}


def failure(**changes):
    fields = {
        "actor": WORK,
        "reason": REASONS["raised"][0],
        "mesh_name": "work-5XyZ",
        "name": "work",
        "crashed_ranks": [1],
        "host": "h1",
        "pid": 77,
    }
    return MeshFailure(**{**fields, **changes})


def raised(exc):
    try:
        raise exc
    except BaseException as caught:
        return caught


# The table ------------------------------------------------------------------------------------------------------------------------


def test_table_is_closed():
    assert len(ROWS) == len(ERROR_TABLE)
    assert [row.code for row in ERROR_TABLE[:10]] == list(REASONS)
    for row in ERROR_TABLE:
        assert re.fullmatch(r"[a-z_]+", row.code)
        assert any(hasattr(module, row.error) for module in (errors, extension, failure_module))
        assert not row.template.endswith(".") or row.code == "orphaned"
        assert [field for _, field, _, _ in string.Formatter().parse(row.template) if field == ""] == []


def test_error_classes_are_importable_from_their_module():
    for row in ERROR_TABLE:
        found = next(getattr(module, row.error) for module in (errors, extension, failure_module) if hasattr(module, row.error))
        assert getattr(importlib.import_module(found.__module__), row.error) is found, row.code


@pytest.mark.parametrize(
    ("make", "code", "bases"),
    [
        (lambda: MonarchError("x"), "error", (Exception,)),
        (lambda: ActorError(ValueError("x")), "actor_error", (MonarchError,)),
        (lambda: SupervisionError("x"), "actor_failed", (MonarchError, RuntimeError)),
        (lambda: SpawnError("x"), "spawn_failed", (SupervisionError,)),
        (lambda: DeliveryError("x"), "undeliverable", (SupervisionError,)),
        (lambda: AttachError("x"), "attach_failed", (MonarchError, RuntimeError)),
        (lambda: VersionMismatch("x"), "version_mismatch", (AttachError,)),
        (lambda: AuthenticationError("x"), "authentication_failed", (AttachError,)),
    ],
)
def test_class(make, code, bases):
    error = make()
    assert (error.code, error.hint) == (code, ROWS[code].hint)
    assert isinstance(error, bases)
    assert ROWS[code].error == type(error).__name__ or code == "error"


# Causes and places ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REASONS)
def test_cause(kind):
    reason, text = REASONS[kind]
    assert failure_module.cause(reason, host="h1", mesh="work") == text


def test_cause_without_detail():
    assert failure_module.cause(ExitReason("stopped")) == "stopped: (no reason provided)"
    assert failure_module.cause(ExitReason("oom", detail="c")).startswith("the process this actor was running on failed: Killed(sig=9)")
    assert failure_module.cause(ExitReason("host_lost", detail="agent killed")) == "host unknown host lost: agent killed"
    assert failure_module.cause(ExitReason("future_kind")) == "future_kind"
    assert failure_module.cause(ExitReason("future_kind", detail="why {x}")) == "why {x}"


def test_braces_in_texts_are_left_alone():
    assert failure_module.cause(ExitReason("raised", detail="KeyError: '{x}'")) == "KeyError: '{x}'"


def test_place_of_a_process_is_described():
    assert text_module.where(12, "h") == "(pid 12 on h)"
    assert text_module.where(12, "h", signal.SIGKILL) == "(pid 12 on h) SIGKILL"
    assert text_module.where(12, "h", 250) == "(pid 12 on h)"
    assert text_module.where(None, None) == "(pid unknown on unknown host)"


# Reports --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in REASONS if kind != "stopped"])
def test_report_first_line(kind):
    reason, text = REASONS[kind]
    lines = failure(reason=reason).report().split("\n")
    place = "(pid 77 on h1)" + (" SIGKILL" if reason.signal else "")
    assert lines[0] == f"The actor {WORK} and all its descendants have failed: {text} {place}"
    # The owner is the script, the signal SIGKILL, the code 3.
    hints = {"raised": error_table.UNHANDLED_BY_ROOT, "signal": error_table.KILLED, "exit_code": error_table.EXITED}
    assert lines[-1] == f"  hint: {hints.get(kind, ROWS[kind].hint)}"
    assert re.match(ACTOR_FAILED, lines[0])


@pytest.mark.parametrize("code", error_table.NOT_RUN_CODES)
def test_report_names_a_program_that_did_not_run(code: int):
    report = failure(reason=ExitReason("exit_code", code=code)).report()
    assert report.split("\n")[-1] == f"  hint: {error_table.NOT_RUN}" and "os._exit" not in report


def test_report_of_a_stopped_mesh():
    report = failure(reason=REASONS["stopped"][0]).report()
    assert report.split("\n")[0] == f"Supervision event: actor {WORK} has status: stopped: done (pid 77 on h1)"
    error = SupervisionError(report, "work.step()")
    assert re.search(r"(?s)(The actor|Supervision event: actor) .* (and all its descendants have failed|has status:).*stopped", str(error))


def test_report_order():
    made = failure(traceback="Traceback ...\n  File x\nValueError: no\n", output=["one\n", "two"], chain=["<root>.<m.Mid mid>"])
    assert made.report().split("\n") == [
        f"The actor {WORK} and all its descendants have failed: ValueError: no (pid 77 on h1)",
        "  <root>.<m.Mid mid> failed because it did not handle a supervision event from its child",
        "  Traceback ...",
        "    File x",
        "  ValueError: no",
        "  last output:",
        "    one",
        "    two",
        f"  hint: {ROWS['raised'].hint}",
    ]
    assert made.report() == failure_module.failure_report(made)


def test_report_keeps_the_culprit_on_the_first_line():
    lines = failure(reason=ExitReason("raised", detail="ValueError: one\ntwo\nthree")).report().split("\n")
    assert lines[0].endswith("ValueError: one (pid 77 on h1)")
    assert lines[1:3] == ["  two", "  three"]
    lines = failure(reason=ExitReason("stopped", detail="one\ntwo")).report().split("\n")
    assert lines[0].endswith("stopped: one (pid 77 on h1)") and lines[1] == "  two"


def test_chain_begins_with_the_first_failure():
    first = failure(actor="<root>.<m.Intermediate intermediate>.<m.ErrorActor error>", name="error", mesh_name="error-1", pid=5)
    middle = failure(actor="<root>.<m.Intermediate intermediate>", name="intermediate", mesh_name="intermediate-1", cause=first)
    top = failure(actor="<root>.<m.Top top>", name="top", mesh_name="top-1", cause=middle)
    lines = top.report().split("\n")
    assert re.match(r"The actor.*Intermediate intermediate.*ErrorActor error.*and all its descendants have failed", lines[0])
    assert "(pid 5 on h1)" in lines[0]
    assert lines[1:3] == [
        "  <root>.<m.Intermediate intermediate> failed because it did not handle a supervision event from its child",
        "  <root>.<m.Top top> failed because it did not handle a supervision event from its child",
    ]
    assert top.cause is middle and middle.cause is first and first.cause is None


def test_chain_lists_each_level_once():
    first = failure(actor="<root>.<m.A a>.<m.B b>", chain=["<root>.<m.A a>"])
    top = failure(actor="<root>.<m.A a>", cause=first)
    assert top.report().count("did not handle") == 1


def test_supervise_that_raised():
    first = failure(actor="<root>.<m.A a>.<m.B b>", reason=REASONS["signal"][0], output=["bye"])
    second = failure(actor="<root>.<m.A a>", reason=ExitReason("raised", detail="KeyError: 'x'"), during=first)
    lines = second.report().split("\n")
    assert lines[0] == "The actor <root>.<m.A a> and all its descendants have failed: KeyError: 'x' (pid 77 on h1)"
    at = lines.index("  This error occurred while handling another failure:")
    assert lines[at + 1].startswith("    The actor <root>.<m.A a>.<m.B b> and all its descendants have failed: the process")
    assert lines[at + 2 : at + 4] == ["      last output:", "        bye"]
    assert [line for line in lines if "hint:" in line] == [lines[-1]]
    assert second.cause is first


def test_failure_text():
    made = failure()
    text = (
        f"MeshFailure(mesh_name=work-5XyZ, crashed_ranks=[1], event=Supervision event: actor {WORK} failed: ValueError: no (pid 77 on h1))"
    )
    assert str(made) == repr(made) == text
    assert made.mesh is None
    assert MeshFailure(actor="<root>", reason=REASONS["signal"][0]).mesh_name == "<none>"


@pytest.mark.parametrize("kind", REASONS)
def test_reason_round_trips(kind):
    reason = REASONS[kind][0]
    for back in (ExitReason.from_wire(reason.to_wire()), pickle.loads(pickle.dumps(reason)), copy.deepcopy(reason)):
        assert back == reason and hash(back) == hash(reason) and repr(back) == repr(reason)
    assert reason != ExitReason(kind, core_dumped=True) and reason != kind
    assert repr(ExitReason("signal", signal=11, core_dumped=True)) == "ExitReason('signal', signal=11, core_dumped=True)"


texts = st.none() | st.text()
reasons = st.builds(
    ExitReason,
    st.sampled_from(sorted(REASONS)),
    st.none() | st.integers(-(2**31), 2**31),
    st.none() | st.integers(1, 64),
    st.booleans(),
    texts,
)


def failures(inner):
    return st.builds(
        MeshFailure,
        actor=st.text(),
        reason=reasons,
        mesh_name=texts,
        name=texts,
        crashed_ranks=st.lists(st.integers(0, 2**40)),
        host=texts,
        pid=st.none() | st.integers(0, 2**31),
        cause=inner,
        traceback=texts,
        output=st.lists(st.text()),
        chain=st.lists(st.text()),
        during=inner,
    )


@given(failures(st.none() | failures(st.none())))
def test_failure_round_trips(made):
    for back in (MeshFailure.from_wire(made.to_wire()), pickle.loads(pickle.dumps(made))):
        assert back == made and hash(back) == hash(made)
        assert back.report() == made.report() and str(back) == str(made)
        assert (back.cause is back.__core__.during) == (made.cause is made.__core__.during)


def test_fields_are_plain():
    class Loud(str):
        def __str__(self):
            raise ValueError

    class Rude:
        def __str__(self):
            raise ValueError

    made = failure(actor=Loud("a"), reason=ExitReason("raised", detail=Rude()))
    assert type(made.actor) is str and made.actor == "a"
    assert made.reason.detail == "<unprintable Rude object>"
    assert MeshFailure.from_wire(made.to_wire()) == made


# The other texts ------------------------------------------------------------------------------------------------------------------


def test_call_failed():
    report = failure(actor="<root>.<m.E error>").report()
    expected = r"Endpoint call error.exit_process\(\) failed, The actor .*error.* and all its descendants have failed"
    assert re.match(expected, text_module.fill("call_failed", endpoint="error.exit_process()", message=report))
    error = SupervisionError(report, endpoint="error.exit_process()")
    assert str(error) == text_module.fill("call_failed", endpoint="error.exit_process()", message=report)
    error.endpoint = "other.method()"
    assert str(error).startswith("Endpoint call other.method() failed, The actor")
    error.endpoint = None
    assert str(error) == report


def test_spawn_failed():
    text = text_module.fill(
        "spawn_failed", mesh="work", cause=failure_module.cause(REASONS["exit_code"][0]), where=text_module.where(3, "h")
    )
    assert text == "error spawning actor mesh work: the process this actor was running on exited with non-zero code 3 (pid 3 on h)"


def test_procs_not_started():
    text = text_module.procs_not_started(8, [("python -m x", "exited with code 1", ["Traceback", "boom\n"]), ("python -m x", "killed", [])])
    assert text.split("\n") == [
        "2 of 8 procs did not start",
        "  python -m x: exited with code 1",
        "    last output:",
        "      Traceback",
        "      boom",
        "  python -m x: killed",
        f"  hint: {ROWS['procs_not_started'].hint}",
    ]


def test_undeliverable():
    text = text_module.undeliverable("work.step()", "<root>", WORK, "link lost")
    assert text == f"undeliverable message for work.step() from client to {WORK}: link lost"
    assert re.search(r"undeliverable message (to|for) .*client", text)


def test_attach_failed():
    hosts = {"tcp://a:1": "refused", "tcp://b:1": "silent for 1m"}
    text = text_module.attach_failed(3, hosts)
    assert text == (
        "attach failed: config push failed during attach: 2 of 3 hosts did not join: tcp://a:1: refused; tcp://b:1: silent for 1m"
    )
    assert AttachError(text, hosts).hosts == hosts and AttachError(text).hosts == {}


def test_remaining_texts():
    assert text_module.fill("version_mismatch", ours="wire 3", theirs="wire 2", peer="h1") == "version mismatch: wire 3 here, wire 2 at h1"
    assert text_module.fill("authentication_failed", peer="h1", why="refused") == "authentication failed with h1: refused"
    assert text_module.fill("controller_failed", name="actor_1", failure="x") == "Failure on actor_1: x"
    line = text_module.fill("unhandled_at_root", host="h1", pid=5, time="now")
    assert line == "Unhandled monarch error on the root actor, hostname=h1, PID=5 at time now:"
    assert text_module.actor_call_failed("work", "step") == "Actor call work.step failed."
    assert text_module.actor_call_failed("work", "step", base=True) == "Actor call work.step failed with BaseException."


# Exceptions that pickle -----------------------------------------------------------------------------------------------------------


class Custom(SupervisionError):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")
        self.one = one


class TwoBases(SupervisionError, TimeoutError):
    """The layout is that of the second built-in base; the order of lookup has the other one first."""


@pytest.mark.parametrize(
    "error",
    [
        MonarchError("m", code="c", hint="h"),
        SupervisionError("m", "work.step()", failure=failure()),
        SpawnError("m"),
        DeliveryError("m", "a.b()"),
        AttachError("m", {"a": "b"}),
        VersionMismatch("m", {"a": "b"}),
        AuthenticationError("m", hint="other"),
        Custom(1, 2),
        TwoBases("m"),
        ActorError(KeyError("k"), "message"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle_with_every_field(error):
    error.add_note("a note")
    for back in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error), pickling.loads(*pickling.dumps(error))):
        assert type(back) is type(error) and back.args == error.args and str(back) == str(error)
        assert {**back.__dict__, "exception": None} == {**error.__dict__, "exception": None}
        assert back.__notes__ == ["a note"]


def test_code_and_hint_of_a_failure():
    error = SupervisionError("m", failure=failure(reason=REASONS["oom"][0]))
    assert (error.code, error.hint) == ("oom", ROWS["oom"].hint)
    assert SpawnError("m", failure=failure()).code == "spawn_failed"
    assert SupervisionError("m", code="x", failure=failure()).code == "x"


# ActorError -----------------------------------------------------------------------------------------------------------------------


def received(exc, message="Actor call work.step failed."):
    return received_actor_error(pack_exception(exc), message, WORK, 77, "h1")


def test_actor_error_made_by_hand():
    error = ActorError(raised(ValueError("no")))
    assert error.message == "A remote actor call has failed."
    assert error.exception_type == "ValueError"
    assert error.exception_formatted.startswith(HEADER)
    assert str(error) == f"{error.message} ValueError: no\n {error.exception_formatted}"


def test_actor_error_received():
    error = received(raised(ValueError("no")))
    assert str(error) == (f"Actor call work.step failed. ValueError: no at {WORK} (pid 77 on h1)\n {error.exception_formatted}")
    assert isinstance(error.exception, ValueError) and error.exception.args == ("no",)
    assert error.exception_formatted.endswith("ValueError: no")
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == str(error) and type(back.exception) is ValueError


def test_actor_error_first_line():
    assert str(received(ValueError("one\ntwo"))).split("\n")[0] == f"Actor call work.step failed. ValueError: one at {WORK} (pid 77 on h1)"
    assert str(received(ValueError())).split("\n")[0] == f"Actor call work.step failed. ValueError at {WORK} (pid 77 on h1)"


class Qualified(Exception):
    class Inner(Exception):
        pass


def test_exception_type_is_qualified():
    assert received(Qualified.Inner()).exception_type == f"{__name__}.Qualified.Inner"
    assert received(SupervisionError("x")).exception_type == "monarch.actor.SupervisionError"


def test_nested_actor_errors():
    inner = received(raised(ZeroDivisionError("deep")), "Actor call inner.f failed.")
    outer = received(raised(inner), "Actor call outer.g failed.")
    assert str(outer).startswith("Actor call outer.g failed. monarch.actor.ActorError: Actor call inner.f failed. ZeroDivisionError: deep")
    assert outer.exception_formatted.count(HEADER) == 2
    assert inner.exception_formatted in outer.exception_formatted
    assert type(outer.exception) is ActorError and type(outer.exception.exception) is ZeroDivisionError
