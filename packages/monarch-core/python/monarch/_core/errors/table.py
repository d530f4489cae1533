"""Every code that an error of core carries, with its text and its hint. Other wheels declare theirs with the same class (`known_rows`).

The texts of `errors` are made from this table and `docs/errors.md` is generated from it. It is data, loaded when the first error is made.
"""

from __future__ import annotations


class ErrorRow:
    """One code: stable, with the class that carries it, the event that causes it, its text and the remedy.

    `template` has named fields for `str.format`, `hint` is the last line of a text. Other wheels give their class itself, core its name.
    """

    __slots__ = ("code", "error", "hint", "situation", "template")

    def __init__(self, code: str, error: str | type[Exception], situation: str, template: str, hint: str | None = None) -> None:
        self.code = code
        self.error = error
        self.situation = situation
        self.template = template
        self.hint = hint


_PROC = "the process this actor was running on"
_UNHANDLED = "return True in `__supervise__` of the owner to go on without the failed actor"
# The hint for failures that the script owns, which has no `__supervise__`.
UNHANDLED_BY_ROOT = "catch `SupervisionError` of the calls, or set `monarch.actor.unhandled_fault_hook`, to go on without the failed actor"
KILLED = "SIGKILL comes from a person, a scheduler or the kernel (see its log)"
EXITED = "look for `os._exit`, or a native library that ends the process, in the code that ran last"
# Exit codes of a process that has run no user code: its program cannot be started, or is another version of Python.
NOT_RUN_CODES = (126, 127)
NOT_RUN = "the last output names the program that could not be run, and why; `with_python_executable` and `bootstrap_command` choose it"
# Signals that native code causes itself, and the way to find its place.
CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
CRASHED = "{signal} comes from native code that the actor calls: call `faulthandler.enable()` in the actor to see the Python stack"

# The first ten codes are the kinds of `ExitReason`, their templates the cause in a report.
ERROR_TABLE: tuple[ErrorRow, ...] = (
    ErrorRow("raised", "SupervisionError", "an actor raised and no caller could be notified, or aborted itself", "{detail}", _UNHANDLED),
    ErrorRow(
        "exit_code",
        "SupervisionError",
        "a process with actors ended with an error code",
        _PROC + " exited with non-zero code {code}",
        f"{EXITED}; with code {' or '.join(map(str, NOT_RUN_CODES))}, {NOT_RUN}",
    ),
    ErrorRow(
        "returned",
        "SupervisionError",
        "a process with actors ended with code 0",
        _PROC + " exited with code 0 while actors were running",
        "look for `os._exit(0)`, or a native library that ends the process; `stop()` is how a proc mesh ends",
    ),
    ErrorRow(
        "signal",
        "SupervisionError",
        "a process with actors was killed by a signal",
        _PROC + " failed: Killed(sig={signal})",
        f"{KILLED}; {CRASHED.format(signal=' or '.join(('SIGSEGV', 'SIGABRT')))}",
    ),
    ErrorRow(
        "oom",
        "SupervisionError",
        "the kernel killed a process because its cgroup was out of memory",
        _PROC + " failed: Killed(sig={signal}), out of memory in cgroup {detail}",
        "raise the memory limit of that cgroup, or put fewer procs on a host",
    ),
    ErrorRow(
        "host_lost",
        "SupervisionError",
        "a host is silent, or its agent is gone",
        "host {host} lost: {detail}",
        "spawn again on the remaining hosts; a silence of two thirds of `host_loss_timeout` loses nothing",
    ),
    ErrorRow(
        "link_lost",
        "SupervisionError",
        "a broken link did not come back in time, although other hosts see both ends",
        "no route to {host}: {detail}",
        "look at the network between the two hosts; `channel_reconnect_timeout` is how long a link may be away",
    ),
    ErrorRow(
        "client_lost",
        "SupervisionError",
        "a handle of another client's job is used, and that client has ended, or is not on this machine or not of this user",
        "client of its job lost: {detail}",
        "a handle works outside its job while the client of the job runs, for processes of the same user on the client's machine; "
        "from another machine, call an actor of the job through a program on the client's machine, or attach the hosts there",
    ),
    ErrorRow(
        "stopped",
        "SupervisionError",
        "the mesh, or the procs it was on, have been stopped",
        "stopped: {detail}",
        "spawn a new mesh to go on; only an owner can stop one",
    ),
    ErrorRow(
        "orphaned",
        "SupervisionError",
        "the owner of a mesh vanished without stopping it",
        "timed out reaching controller {owner} for mesh {mesh}. Assuming controller's proc is dead",
        "`mesh_orphan_timeout` is how long hosts keep the work of a vanished owner",
    ),
    ErrorRow("error", "MonarchError", "anything below; never raised itself", "{message}"),
    ErrorRow(
        "actor_failed",
        "SupervisionError",
        "report of a failure",
        "The actor {display} and all its descendants have failed: {cause} {where}",
    ),
    ErrorRow(
        "not_handled",
        "SupervisionError",
        "in a report, one line for every level that passed the failure on",
        "{display} failed because it did not handle a supervision event from its child",
    ),
    ErrorRow(
        "while_handling",
        "SupervisionError",
        "in a report, between a failure of `__supervise__` and the failure it was called for",
        "This error occurred while handling another failure:",
    ),
    ErrorRow(
        "actor_stopped",
        "SupervisionError",
        "report about a stopped mesh",
        "Supervision event: actor {display} has status: stopped: {reason} {where}",
    ),
    ErrorRow(
        "call_failed",
        "SupervisionError",
        "a call on a failed or stopped mesh, or during a failure",
        "Endpoint call {endpoint} failed, {message}",
    ),
    ErrorRow(
        "mesh_failure",
        "MeshFailure",
        "`str` of the failure that `__supervise__` and the fault hook get",
        "MeshFailure(mesh_name={mesh_name}, crashed_ranks={ranks}, event=Supervision event: actor {display} failed: {cause} {where})",
    ),
    ErrorRow(
        "unhandled_at_root",
        "MeshFailure",
        "on stderr, before the report, when the fault hook raised",
        "Unhandled monarch error on the root actor, hostname={host}, PID={pid} at time {time}:",
    ),
    ErrorRow(
        "fault_hook_failed",
        "MeshFailure",
        "on stderr, after the report, when the fault hook raised something that is not meant to end the program",
        "`unhandled_fault_hook` raised {error}",
    ),
    ErrorRow("spawn_failed", "SpawnError", "a spawn where it cannot be", "error spawning actor mesh {mesh}: {cause} {where}"),
    ErrorRow(
        "procs_not_started",
        "SpawnError",
        "processes that did not come up",
        "{k} of {n} procs did not start",
        "run the command by hand on that host; `monarch doctor` checks a machine",
    ),
    ErrorRow(
        "gave_up",
        "SupervisionError",
        "a replica that failed again and again",
        "{name} {rank} failed {count} times within {within} s, given up:",
        "the last failure is below; `max_restarts` and `within` of `Replicas` state how many failures are tolerated",
    ),
    ErrorRow(
        "undeliverable",
        "DeliveryError",
        "a call that could not be sent to its receivers, who live, or has not come whole, or a message that came back",
        "undeliverable message for {target} from {sender} to {dest}: {why}",
    ),
    ErrorRow(
        "deadline_exceeded",
        "DeadlineExceeded",
        "the deadline of a call passed before all ranks had answered",
        "{endpoint}: {k} of {n} ranks have answered at the deadline",
        "`error.values` has the answers that came, `error.missing` the other ranks; the actors live, and later calls work",
    ),
    ErrorRow(
        "attach_failed",
        "AttachError",
        "hosts that did not join in time",
        "attach failed: config push failed during attach: {k} of {n} hosts did not join: {hosts}",
        "check that `monarch worker` runs at these addresses; `mesh_attach_config_timeout` is how long all of them may take",
    ),
    ErrorRow(
        "not_shut_down",
        "SupervisionError",
        "a shutdown of hosts of which some did not confirm their end",
        "shutdown: {k} of {n} hosts may still run: {hosts}",
        "end `monarch worker` there; it ends what the job left there when its lease (`mesh_orphan_timeout`) is over",
    ),
    ErrorRow(
        "version_mismatch",
        "VersionMismatch",
        "the two sides of a connection have incompatible versions",
        "version mismatch: {ours} here, {theirs} at {peer}",
        "install the same version of monarch-core, on the same minor version of Python, on both sides",
    ),
    ErrorRow(
        "authentication_failed",
        "AuthenticationError",
        "a peer that could not prove that it belongs to the job, or refused our proof",
        "authentication failed with {peer}: {why}",
        "both sides need the same job secret, or certificates of the same authority",
    ),
    ErrorRow(
        "actor_error",
        "ActorError",
        "an endpoint raised an `Exception`; the actor lives",
        "{message} {error} {place}",
    ),
    ErrorRow(
        "reload_failed",
        "ActorError",
        "a module that raised when `sync_workspace` had a proc load it again",
        "module {module} could not be reloaded;",
        "the old functions and classes of the module are still there; correct it and sync again",
    ),
    ErrorRow(
        "promise_dropped",
        "PromiseDropped",
        "a promise of another wheel that nothing can set any more",
        "the promise {name} was dropped before it was set",
    ),
    ErrorRow(
        "promise_failed",
        "PromiseFailed",
        "native code of another wheel has set a promise with an error",
        "{name} failed: {why}",
    ),
    ErrorRow(
        "service_failed",
        "ServiceError",
        "a service of a host did not start, or runs with other arguments",
        "service {name} on host {host}: {why}",
        "`monarch ps` shows the service, and how it ended",
    ),
    ErrorRow(
        "handle_malformed",
        "HandleError",
        "bytes that are not those of `handle_bytes`, or not all of them",
        "handle bytes: {why}",
        "pass the whole result of `handle_bytes`, which is one word of ASCII characters",
    ),
    ErrorRow(
        "handle_unknown",
        "HandleError",
        "bytes that the client of their job has not made",
        "handle bytes: the client of the job has not made them",
        "make them again with `handle_bytes`; a changed or an invented ticket is refused",
    ),
    ErrorRow(
        "handle_expired",
        "HandleError",
        "bytes whose validity is over",
        "handle bytes: their validity is over",
        "make them again with `handle_bytes`, or with a longer `expires_in`",
    ),
    ErrorRow(
        "handle_client_lost",
        "HandleError",
        "bytes of a client that has ended, or that is on another machine or of another user",
        "handle bytes: the client of the job does not answer: {why}",
        "the client answers while it runs, for programs of the same user on its machine and for processes of its job",
    ),
    ErrorRow("request_failed", "RequestError", "the handler of a request failed it", "request {name} to {proc} failed: {why}"),
    ErrorRow(
        "request_unhandled",
        "RequestError",
        "the receiver of a request has no handler for it",
        "request {name} to {proc} has no handler: {why}",
        "install the wheel that has the handler on every host, in the environment that the procs run in",
    ),
    ErrorRow(
        "request_proc_ended",
        "RequestError",
        "the receiver of a request ended before it answered",
        "request {name} to {proc} was not answered: {why}",
    ),
    ErrorRow(
        "proc_unknown",
        "MonarchError",
        "a request to, or a watch of, an identity that no process of the job has",
        "{what} {proc}: no process of this job that is known here has this identity",
        "`reach(proc, host)` declares the host of a process that this one has no handle of",
    ),
    ErrorRow("controller_failed", "ActorError", "a look-up of a controller that has failed", "Failure on {name}: {failure}"),
)

ROWS = {row.code: row for row in ERROR_TABLE}
