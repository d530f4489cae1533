//! The end of a host: the actions that follow, in their order.

use wire::ProcUid;

use super::detector::Role;
use super::{Action, HostState};

/// The circumstances under which a host ends.
pub(super) struct End<'a> {
    pub host: ProcUid,
    pub why: &'a str,
    pub before: HostState,
    pub after: HostState,
    /// The host is the client of the job.
    pub is_client: bool,
    /// False if all hosts of the job end by the same cause.
    pub notify: bool,
}

/// The actions after the end of a host, in one process of the job.
///
/// The client alone declares hosts lost: it notifies the host and the other hosts. A host that is frozen or cut off receives the notice
/// when it is back, unless the kernel has given up the connection by then; in that case its lease ends its work. An agent resets its
/// session with the host: an agent that is alive would take a normal end of all connections for an exit of this one.
pub(super) fn actions(role: Role, end: &End<'_>) -> Vec<Action> {
    let (host, why) = (end.host, end.why.to_owned());
    let notify = role == Role::Client && end.notify;
    let mut actions = vec![];
    if notify && !end.before.is_leaving() {
        actions.push(Action::NotifyHost { host, why: why.clone() });
    }
    actions.push(Action::EndSession { host, reset: role == Role::Agent });
    actions.push(Action::Record { host, left: end.after == HostState::Left, why: why.clone() });
    if end.is_client {
        // The client's processes end with its job.
        actions.push(Action::EndJob { why });
        return actions;
    }
    actions.push(Action::EndProcesses { host, had_joined: end.before.is_joined() });
    if notify {
        actions.push(Action::NotifyOthers { host, why });
    }
    actions
}
