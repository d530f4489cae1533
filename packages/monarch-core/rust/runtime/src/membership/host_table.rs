//! The state of each host of a job, and the transitions between states. `docs/invariants.md` prints the table of `transition`.
//!
//! A host that is not in the table is `Announced`. A host never leaves the states `Left`, `Lost` and `LinkLost`, so these entries are the
//! tombstones of hosts: no host is admitted again with the same id.

use std::collections::HashMap;

use wire::ProcUid;

/// The state of one host of a job, in one process of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostState {
    /// The id of the host is known. Frames for the host wait.
    #[default]
    Announced,
    /// An attempt to join the host is under way.
    Joining,
    /// The exit of the host was requested before the host has joined.
    Dismissed,
    /// The host has joined: connections of its session may be opened.
    Joined,
    /// The host has joined, and the detector suspects it.
    Suspected,
    /// The exit of the host was requested or announced: its known end is no loss.
    Leaving,
    /// The same, and the detector suspects the host.
    LeavingSuspected,
    /// The end of the host is known, and its exit was requested or announced before.
    Left,
    /// The host is lost: it has ended unexpectedly, or its end is not known.
    Lost,
    /// The host is alive, but no route leads to it.
    LinkLost,
}

/// An event of one host that may change its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostEvent {
    /// An attempt to join the host begins.
    JoinStarted,
    /// The attempt has ended. `Joined` follows if the host has joined.
    JoinEnded,
    /// The host has joined: by an attempt of this process, by a report of a relay or of the client, or by a connection of the host.
    Joined,
    /// The detector suspects the host.
    Suspected,
    /// A suspicion has ended with a heartbeat.
    Recovered,
    /// The host has answered on a new connection.
    Reconnected,
    /// The exit of the host was requested or announced.
    ExitExpected,
    /// The end of the host is known: by a goodbye, by a port that refuses after the end of the connections, or by another process there.
    Ended,
    /// The host is silent, does not become a member, or does not know the job: its agent may still run.
    Lost,
    /// No route leads to the host.
    LinkLost,
}

impl HostState {
    pub const ALL: [HostState; 10] = {
        use HostState::*;
        [Announced, Joining, Dismissed, Joined, Suspected, Leaving, LeavingSuspected, Left, Lost, LinkLost]
    };

    /// The host has joined and has not ended.
    pub fn is_joined(self) -> bool {
        matches!(self, HostState::Joined | HostState::Suspected | HostState::Leaving | HostState::LeavingSuspected)
    }

    /// The host has joined or has ended: no attempt to join it is needed.
    pub fn is_join_over(self) -> bool {
        self.is_joined() || self.is_ended()
    }

    pub fn is_suspected(self) -> bool {
        matches!(self, HostState::Suspected | HostState::LeavingSuspected)
    }

    /// The exit of the host was requested or announced.
    pub fn is_leaving(self) -> bool {
        matches!(self, HostState::Dismissed | HostState::Leaving | HostState::LeavingSuspected | HostState::Left)
    }

    /// The host has ended for this process.
    pub fn is_ended(self) -> bool {
        matches!(self, HostState::Left | HostState::Lost | HostState::LinkLost)
    }

    /// The agent of the host may have made the job.
    pub fn may_have_job(self) -> bool {
        self.is_joined() || matches!(self, HostState::Joining | HostState::Dismissed)
    }
}

impl HostEvent {
    pub const ALL: [HostEvent; 10] = {
        use HostEvent::*;
        [JoinStarted, JoinEnded, Joined, Suspected, Recovered, Reconnected, ExitExpected, Ended, Lost, LinkLost]
    };
}

/// The next state of a host; none if the event cannot happen in this state.
pub fn transition(state: HostState, event: HostEvent) -> Option<HostState> {
    use HostState::*;
    Some(match (state, event) {
        (Left | Lost | LinkLost, _) => state,
        (_, HostEvent::LinkLost) => LinkLost,
        (Dismissed | Leaving | LeavingSuspected, HostEvent::Ended) => Left,
        (_, HostEvent::Ended | HostEvent::Lost) => Lost,

        (Announced, HostEvent::JoinStarted) => Joining,
        (Joining, HostEvent::JoinEnded) => Announced,
        // Two attempts to join the host may overlap, and another process may join it meanwhile.
        (_, HostEvent::JoinStarted | HostEvent::JoinEnded) => state,
        (Announced | Joining, HostEvent::Joined) => Joined,
        (Dismissed, HostEvent::Joined) => Leaving,
        (_, HostEvent::Joined) => state,

        (Announced | Joining, HostEvent::ExitExpected) => Dismissed,
        (Joined, HostEvent::ExitExpected) => Leaving,
        (Suspected, HostEvent::ExitExpected) => LeavingSuspected,
        (_, HostEvent::ExitExpected) => state,

        // The detector watches only hosts that have joined.
        (Announced | Joining | Dismissed, _) => return None,
        (Joined, HostEvent::Suspected) => Suspected,
        (Leaving, HostEvent::Suspected) => LeavingSuspected,
        (Suspected | LeavingSuspected, HostEvent::Suspected) => return None,
        (Suspected, HostEvent::Recovered | HostEvent::Reconnected) => Joined,
        (LeavingSuspected, HostEvent::Recovered | HostEvent::Reconnected) => Leaving,
        (Joined | Leaving, HostEvent::Recovered | HostEvent::Reconnected) => state,
    })
}

/// The transition table as Markdown: a row for each state, a column for each event. An empty cell leaves the state as it is, and a dash
/// marks an event that cannot happen in the state.
pub fn table() -> String {
    let cell = |state, event| match transition(state, event) {
        None => "-".to_owned(),
        Some(next) if next == state => String::new(),
        Some(next) => format!("`{next:?}`"),
    };
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let names = HostEvent::ALL.iter().map(|event| format!("{event:?}"));
    let mut text = line(std::iter::once("state".to_owned()).chain(names).collect());
    text += &format!("|{}\n", "---|".repeat(HostEvent::ALL.len() + 1));
    for state in HostState::ALL {
        let cells = HostEvent::ALL.iter().map(|event| cell(state, *event));
        text += &line(std::iter::once(format!("`{state:?}`")).chain(cells).collect());
    }
    text
}

/// The entry of one host.
#[derive(Default)]
struct Entry {
    state: HostState,
    /// The reason of the end; empty before it.
    why: String,
    /// The end of the agent is known.
    is_end_known: bool,
}

/// The states of all hosts of a job, and the reasons of those that have ended.
#[derive(Default)]
pub struct HostTable {
    hosts: HashMap<ProcUid, Entry>,
}

impl HostTable {
    pub fn state(&self, host: ProcUid) -> HostState {
        self.hosts.get(&host).map_or(HostState::Announced, |entry| entry.state)
    }

    /// The reason why the host has ended; none while it has not.
    pub fn end_reason(&self, host: ProcUid) -> Option<&str> {
        self.hosts.get(&host).filter(|entry| entry.state.is_ended()).map(|entry| entry.why.as_str())
    }

    /// The reason why the host has ended for this process although its agent may still run; none for any other host.
    pub fn unknown_end(&self, host: ProcUid) -> Option<&str> {
        self.end_reason(host).filter(|_| self.hosts.get(&host).is_some_and(|entry| !entry.is_end_known))
    }

    /// Changes the state of a host by an event: returns the state before and after it, or none if the event cannot happen in the state.
    pub(super) fn change(&mut self, host: ProcUid, event: HostEvent, why: &str) -> Option<(HostState, HostState)> {
        let before = self.state(host);
        let after = transition(before, event)?;
        if after != before {
            let why = if after.is_ended() { why.to_owned() } else { String::new() };
            self.hosts.insert(host, Entry { state: after, why, is_end_known: event == HostEvent::Ended });
        }
        Some((before, after))
    }
}
