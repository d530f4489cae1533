//! The relay of a job on this host, and the effects that it has decided. It does no I/O.
//!
//! A relay decides under its lock, and its effects are carried out after that: they wait in a queue, and a thread that finds no other
//! thread at the queue carries them out, one after the other.
//!
//! What it needs: the caller carries out the effects, and calls `Relay::on_time` after the delay that `update` has returned.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use wire::ProcUid;

use crate::cast::{Effect, Relay};

/// For tests: an environment variable with the number of children in the tree of a cast. A small number makes trees with interior hosts out
/// of few hosts.
const FAN_OUT: &str = "MONARCH_CAST_FAN_OUT";

/// The numbers of records that are kept for casts, and of frames that were sent for them.
#[derive(Clone, Copy, Default, Debug)]
pub struct CastCounts {
    pub records: usize,
    pub groups: usize,
    /// Frames that wait for an earlier frame.
    pub held: usize,
    pub sent: u64,
}

/// The relay of a job on this host, and its effects that are not carried out yet. The job owns it.
pub(super) struct CastRelay {
    pub relay: Relay,
    effects: VecDeque<Effect>,
    /// A thread carries out the effects.
    busy: bool,
    /// When `Relay::on_time` is scheduled, as time since the job was made.
    wake_at: Option<Duration>,
    /// The processes of this host to which casts have been delivered.
    pub members: HashSet<ProcUid>,
}

impl CastRelay {
    pub fn new(here: ProcUid) -> Self {
        let fan_out = std::env::var(FAN_OUT).ok().and_then(|n| n.parse().ok());
        let relay = fan_out.map_or_else(|| Relay::new(here), |n: u32| Relay::with_fan_out(here, n.max(1)));
        CastRelay { relay, effects: VecDeque::new(), busy: false, wake_at: None, members: HashSet::new() }
    }

    /// Passes an event to the relay, and queues the effects. Returns the delay after which `on_time` is to be called; none if such
    /// a call is scheduled.
    pub fn update(&mut self, now: Duration, event: impl FnOnce(&mut CastRelay) -> Vec<Effect>) -> Option<Duration> {
        let effects = event(self);
        self.effects.extend(effects);
        let at = self.relay.deadline().filter(|at| self.wake_at.is_none_or(|wake_at| *at < wake_at))?;
        self.wake_at = Some(at);
        Some(at.saturating_sub(now))
    }

    /// The delay of a call has passed.
    pub fn on_time(&mut self, now: Duration) -> Vec<Effect> {
        self.wake_at = None;
        self.relay.on_time(now)
    }

    /// Lets the calling thread carry out the effects; false if another thread does.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.busy, true)
    }

    /// The next effect, for the thread that carries them out. It stops if there is none.
    pub fn next(&mut self) -> Option<Effect> {
        let next = self.effects.pop_front();
        self.busy = next.is_some();
        next
    }
}
