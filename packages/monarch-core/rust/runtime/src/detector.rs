//! Which hosts of a job are lost, as one member of it sees it: the client, or the agent of a host.
//!
//! No input, no output, no clock. What was heard goes in with the time, what is to be done comes out of `tick`. All times but one
//! come from `host_loss_timeout`, whose fortieth is the beat (`Settings::beat`); the figures below are for its default, 3 s.
//!
//! **Silence.** Who has not been heard for 3 beats is pinged, so a link with traffic costs nothing more, and an idle one carries
//! four small frames a second. 12 beats of silence (0.9 s) are a suspicion. That is no failure: up to three other hosts are asked,
//! every 4 beats, when they heard the suspect last, and being asked they ping it themselves. What counts is the latest *evidence of
//! life*, one's own or a third host's; when that is 36 beats old (2.7 s), the host is lost. From a cut to the verdict it is 2.78 s at
//! most, whichever way the pings fall. This is SWIM (Das, Gupta, Motivala, 2002), with its suspicions and indirect probes, but
//! decided by how long it is silent instead of by single pings: streams lose nothing, they are late.
//!
//! **A broken link.** A suspect that a third host has heard after the suspicion began lives: the way to it is broken. That is waited
//! for as long as evidence keeps coming, and `channel_reconnect_timeout` at most; then the link is lost. Evidence is dated by when
//! the third host was asked, not by when its answer came, so a late answer never makes a dead host look alive.
//!
//! **What the kernel says.** A goodbye is the end of the agent, known at once. EOF on all streams without a goodbye proves nothing: the
//! kernel of a process that has ended sends it, and so does a proxy, a load balancer or a forwarded port that closes its connections.
//! It begins a suspicion, and the port is dialled: if that refuses, the agent has ended, which on one machine takes less than a
//! millisecond. Resets also come from others, firewalls for one, which may refuse as well: they begin a suspicion at once, and a port
//! that refuses then shortens it, to 16 beats without evidence if another host knows the suspect, to 27 (2 s) if there is nobody to
//! ask. So with two hosts, a link that is down and up within
//! 2 s makes nothing; if its user sees to it that a ping gets through soon after: TCP doubles the time between its attempts, and
//! after 2 s without a way the next may be a second off. So suspects are pinged with every beat, on connections made anew.
//!
//! **One's own starvation** accuses nobody. A tick that comes late says for how long this member did not run, or did not get to
//! read; so long its clock of silences stands still, and all deadlines move by it. Lifeguard (Dadgar, Phillips, Currey, 2018) found
//! that most false alarms of SWIM come from slow accusers, and stretches their timeouts by a score of their health; lateness is
//! that score, measured directly. The bound on detection grows by as much as the member starved.
//!
//! **Cut off itself.** A member that hears nobody at all is more likely cut off than the last one left. After 12 beats of that its
//! clock of silences stands still until it hears somebody, so it loses nobody. What becomes of an agent is its lease's to decide. The
//! client has nobody above it: it waits for `channel_reconnect_timeout`, which is as long as agents keep the work of a client that is
//! cut off, and then declares what it sees, all hosts lost. With one host only it cannot tell who is cut off, and does not wait: a host
//! that is lost is to be known in time. An agent watches its client, too: that can be asked about hosts, and who hears it is not alone.
//! `Lost` of a client says no more than that it is not heard: the lease decides, and when the client is back it is watched again.
//!
//! **One way cuts.** If B does not hear A but A hears B, B suspects: with a third host that hears A, its link to A is lost after
//! `channel_reconnect_timeout`, and by closing it B tells A; without one, A is lost. (Over TCP both fall silent: without
//! acknowledgements nothing new is sent.) A host that nobody hears is lost, though it hears all; it is told when it is refused. A
//! host that hears nobody, though all hear it, loses nobody and ends by its lease, with a goodbye.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wire::ProcUid;

/// Beats of silence after which a host is pinged, and pings are this far apart; those of a suspect are one beat apart.
const PING: u32 = 3;
/// Beats of silence that are suspicious: at least two pings that were not answered.
const SUSPECT: u32 = 12;
/// Beats between two rounds of questions about a suspect; one is answered before the next begins, unless it takes 300 ms.
const PROBE: u32 = 4;
/// Beats without evidence of life after which a host is lost. With one beat until it is looked at, and what timers are late on a
/// busy machine, this stays below the 40 beats of the whole.
const LOST: u32 = 36;
/// The same where connections are refused and a third host has nothing new of it: four times what lies between two pings.
const LOST_REFUSED: u32 = 16;
/// The same where there is nobody to ask: 2 s, so that a link that is back within them makes nothing.
const LOST_REFUSED_ALONE: u32 = 27;
/// Third hosts asked in one round; SWIM's k, where 3 is common.
const ASKED: usize = 3;
/// Beats for which a host that another member has asked about is pinged: until the next round or two.
const HELP: u32 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Has nobody above it: if it hears nobody it declares, after a while, that all are lost.
    Client,
    /// Loses nobody while it hears nobody.
    Agent,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `host_loss_timeout`
    pub loss: Duration,
    /// `channel_reconnect_timeout`
    pub reconnect: Duration,
    pub role: Role,
}

impl Settings {
    /// The unit of all times here, and how often it is looked at them.
    pub fn beat(&self) -> Duration {
        (self.loss / 40).max(Duration::from_millis(1))
    }
}

/// How the streams of a host ended, or the attempt to open new ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkEnd {
    /// It said goodbye, or another agent answers at its address.
    Exited,
    /// All streams have ended, with EOF on one at least, and without a goodbye.
    Ended,
    /// After such an end its port has refused a connection, or another member has seen that.
    Killed,
    /// All streams were reset.
    Reset,
    /// Nothing listens at its address.
    Refused,
    /// A local error: timed out, no route, unreachable.
    Cut,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send it a ping; a suspect on a connection made anew, if that may help.
    Ping(ProcUid),
    /// Ask `via` when it heard `about` last.
    Probe {
        via: ProcUid,
        about: ProcUid,
    },
    Suspect(ProcUid),
    Recovered(ProcUid),
    /// It is watched no more; so with `LinkLost`.
    Lost {
        host: ProcUid,
        why: String,
    },
    /// It lives, but there is no way to it.
    LinkLost {
        host: ProcUid,
        why: String,
    },
}

/// A time, and how long the clock of silences had stood still by then.
#[derive(Clone, Copy)]
struct Stamp {
    at: Instant,
    stood: Duration,
}

/// The clock of silences.
struct Clock {
    stood: Duration,
    /// When it was looked at last, and when it should be next.
    looked: Instant,
    due: Instant,
}

impl Clock {
    fn stamp(&self, at: Instant) -> Stamp {
        Stamp { at, stood: self.stood }
    }

    fn since(&self, stamp: Stamp, now: Instant) -> Duration {
        now.saturating_duration_since(stamp.at).saturating_sub(self.stood.saturating_sub(stamp.stood))
    }
}

struct Suspicion {
    since: Instant,
    /// When others were asked last.
    asked: Option<Instant>,
    /// Who has not answered, and since when.
    open: BTreeMap<ProcUid, Stamp>,
    /// When a third host heard it, by the latest that is known.
    vouched: Option<Stamp>,
    /// Whether there was somebody to ask, and whether somebody has answered.
    others: bool,
    answered: bool,
}

struct Host {
    heard: Stamp,
    /// Whether it has ever been heard, or is merely watched.
    known: bool,
    pinged: Option<Instant>,
    /// Somebody wants to know: ping it soon.
    wanted: bool,
    /// Not watched: only pinged until then, for somebody who asked.
    help: Option<Instant>,
    down: Option<LinkEnd>,
    /// Its streams have ended with EOF, and nothing has come from it since.
    ended: bool,
    suspicion: Option<Suspicion>,
    recovered: bool,
}

impl Host {
    fn new(heard: Stamp, help: Option<Instant>) -> Self {
        Host {
            heard,
            known: false,
            pinged: None,
            wanted: help.is_some(),
            help,
            down: None,
            ended: false,
            suspicion: None,
            recovered: false,
        }
    }

    /// Begins a suspicion, or goes on with it; true if it is a new one.
    fn suspect(&mut self, now: Instant) -> bool {
        let new = self.suspicion.is_none();
        self.suspicion.get_or_insert_with(|| Suspicion {
            since: now,
            asked: None,
            open: BTreeMap::new(),
            vouched: None,
            others: false,
            answered: false,
        });
        new
    }
}

pub struct Detector {
    settings: Settings,
    clock: Option<Clock>,
    /// When anybody was heard.
    any: Option<Stamp>,
    /// Since when it has been known that nobody is heard.
    alone: Option<Instant>,
    hosts: BTreeMap<ProcUid, Host>,
    /// Suspicions that a link's end began, which are yet to be told.
    fresh: Vec<ProcUid>,
    /// Whose turn it is to be asked.
    turn: usize,
}

impl Detector {
    pub fn new(settings: Settings) -> Self {
        Detector { settings, clock: None, any: None, alone: None, hosts: BTreeMap::new(), fresh: vec![], turn: 0 }
    }

    // ---- what happens

    pub fn watch(&mut self, host: ProcUid, now: Instant) {
        let stamp = self.look(now);
        self.any.get_or_insert(stamp);
        let entry = self.hosts.entry(host).or_insert_with(|| Host::new(stamp, None));
        if entry.help.take().is_some() {
            entry.heard = stamp;
        }
        self.soon(now, self.settings.beat());
    }

    /// Nothing more is said of it.
    pub fn forget(&mut self, host: ProcUid) {
        self.hosts.remove(&host);
        self.fresh.retain(|h| *h != host);
    }

    /// Something authentic has come from it, on any stream; also of one that is not watched.
    pub fn heard(&mut self, host: ProcUid, now: Instant) {
        let stamp = self.look(now);
        (self.any, self.alone) = (Some(stamp), None);
        let Some(h) = self.hosts.get_mut(&host).filter(|h| !over(h.down)) else { return };
        (h.heard, h.known, h.down, h.ended) = (stamp, true, None, false);
        if h.suspicion.take().is_some() {
            // Unless nobody has been told of the suspicion yet.
            let before = self.fresh.len();
            self.fresh.retain(|f| *f != host);
            h.recovered |= before == self.fresh.len();
            self.soon(now, Duration::ZERO);
        }
    }

    /// Another member has heard it so long ago, and says so from time to time: as good as having heard it.
    pub fn heard_ago(&mut self, host: ProcUid, ago: Duration, now: Instant) {
        let stamp = self.look(now);
        let beat = self.settings.beat();
        let (Some(clock), Some(at)) = (&self.clock, now.checked_sub(ago)) else { return };
        let stamp = Stamp { at, ..stamp };
        let recent = clock.since(stamp, now) < SUSPECT * beat;
        let Some(h) = self.hosts.get_mut(&host).filter(|h| !over(h.down) && (!h.known || h.heard.at < at)) else { return };
        (h.heard, h.known) = (stamp, true);
        if recent && h.suspicion.as_ref().is_some_and(|s| s.since < at) {
            (h.suspicion, h.down) = (None, None);
            let before = self.fresh.len();
            self.fresh.retain(|f| *f != host);
            h.recovered |= before == self.fresh.len();
            self.soon(now, Duration::ZERO);
        }
    }

    /// How long ago it was heard, if ever.
    pub fn ago(&self, host: ProcUid, now: Instant) -> Option<Duration> {
        self.hosts.get(&host).filter(|h| h.known).map(|h| now.saturating_duration_since(h.heard.at))
    }

    /// All its streams are gone, or new ones cannot be opened; true if that proves the end of its agent.
    pub fn link_down(&mut self, host: ProcUid, cause: LinkEnd, now: Instant) -> bool {
        self.look(now);
        let Some(h) = self.hosts.get_mut(&host).filter(|h| h.help.is_none() && !over(h.down)) else { return false };
        h.ended |= cause == LinkEnd::Ended;
        let cause = if h.ended && cause == LinkEnd::Refused { LinkEnd::Killed } else { cause };
        // A port that refuses says more than whatever came before and comes after.
        if h.down != Some(LinkEnd::Refused) || over(Some(cause)) {
            h.down = Some(cause);
        }
        if h.suspect(now) {
            self.fresh.push(host);
        }
        self.soon(now, Duration::ZERO);
        over(Some(cause))
    }

    /// A third host has answered: so long ago it heard of it, or never.
    pub fn probed(&mut self, about: ProcUid, via: ProcUid, heard_ago: Option<Duration>, now: Instant) {
        self.look(now);
        let Some(clock) = &self.clock else { return };
        let Some(suspicion) = self.hosts.get_mut(&about).and_then(|h| h.suspicion.as_mut()) else { return };
        let Some(asked) = suspicion.open.remove(&via) else { return };
        let Some(ago) = heard_ago else { return };
        suspicion.answered = true;
        let Some(at) = asked.at.checked_sub(ago) else { return };
        let vouched = Stamp { at, stood: asked.stood };
        if suspicion.vouched.is_none_or(|v| clock.since(v, now) > clock.since(vouched, now)) {
            suspicion.vouched = Some(vouched);
        }
    }

    /// Another member asks about it: how long ago it was heard. It is pinged, so that the next answer is a better one.
    pub fn asked(&mut self, about: ProcUid, now: Instant) -> Option<Duration> {
        let stamp = self.look(now);
        let until = now + HELP * self.settings.beat();
        let h = self.hosts.entry(about).or_insert_with(|| Host::new(stamp, Some(until)));
        h.help = h.help.map(|_| until);
        h.wanted = true;
        let ago = h.known.then(|| now.saturating_duration_since(h.heard.at));
        self.soon(now, Duration::ZERO);
        ago
    }

    // ---- what is to be done

    /// In how long `tick` is to be called; never, if nobody is watched.
    pub fn next(&self, now: Instant) -> Option<Duration> {
        let clock = self.clock.as_ref().filter(|_| !self.hosts.is_empty())?;
        Some(clock.due.saturating_duration_since(now))
    }

    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        self.look(now);
        let beat = self.settings.beat();
        let Some(clock) = self.clock.as_mut() else { return vec![] };
        clock.due = now + beat;
        let clock = &*clock;
        self.hosts.retain(|_, h| h.help.is_none_or(|until| now < until));
        let mut actions: Vec<Action> = self.fresh.drain(..).map(Action::Suspect).collect();
        for (host, h) in &mut self.hosts {
            let quiet = now.saturating_duration_since(h.heard.at);
            // A suspect gets one with every beat: whatever passes now may be all that does.
            let often = std::mem::take(&mut h.wanted) || h.suspicion.is_some();
            let every = if often { beat } else { PING * beat };
            if quiet >= every && h.pinged.is_none_or(|at| now.saturating_duration_since(at) >= every) {
                h.pinged = Some(now);
                actions.push(Action::Ping(*host));
            }
            if std::mem::take(&mut h.recovered) {
                actions.push(Action::Recovered(*host));
            }
            if h.help.is_none() && clock.since(h.heard, now) >= SUSPECT * beat && h.suspect(now) {
                actions.push(Action::Suspect(*host));
            }
        }
        let well: Vec<ProcUid> =
            self.hosts.iter().filter(|(_, h)| h.known && h.help.is_none() && h.suspicion.is_none()).map(|(host, _)| *host).collect();
        let mut ended = vec![];
        for (host, h) in &mut self.hosts {
            let Some(suspicion) = &mut h.suspicion else { continue };
            let silence = clock.since(h.heard, now);
            if let Some(action) = verdict(*host, h.down, suspicion, silence, clock, now, &self.settings) {
                ended.push(*host);
                actions.push(action);
            } else if suspicion.asked.is_none_or(|at| now.saturating_duration_since(at) >= PROBE * beat) {
                suspicion.asked = Some(now);
                suspicion.others |= !well.is_empty();
                for via in well.iter().cycle().skip(self.turn % well.len().max(1)).take(ASKED.min(well.len())) {
                    suspicion.open.entry(*via).or_insert(clock.stamp(now));
                    actions.push(Action::Probe { via: *via, about: *host });
                }
                self.turn = self.turn.wrapping_add(ASKED);
            }
        }
        ended.into_iter().for_each(|host| drop(self.hosts.remove(&host)));
        actions
    }

    /// Whether this member hears nobody: it is more likely cut off than all others are.
    pub fn alone(&self) -> bool {
        self.alone.is_some()
    }

    /// Moves the clock of silences on, unless it stands still: the time that a tick is late, and the time in which nobody is heard.
    fn look(&mut self, now: Instant) -> Stamp {
        let (beat, watched) = (self.settings.beat(), self.hosts.values().filter(|h| h.help.is_none()).take(2).count());
        let (patience, others) = match self.settings.role {
            Role::Agent => (Duration::MAX, 1),
            Role::Client => (self.settings.reconnect.saturating_sub((LOST - SUSPECT) * beat), 2),
        };
        let clock = self.clock.get_or_insert(Clock { stood: Duration::ZERO, looked: now, due: now + beat });
        let late = now.saturating_duration_since(clock.due);
        if self.alone.is_some_and(|since| now.saturating_duration_since(since) < patience) {
            clock.stood += now.saturating_duration_since(clock.looked);
        } else if late > beat && !self.hosts.is_empty() {
            clock.stood += late;
        }
        if late > beat {
            clock.due = now;
        }
        clock.looked = clock.looked.max(now);
        if self.alone.is_none() && watched >= others && self.any.is_some_and(|any| clock.since(any, now) >= SUSPECT * beat) {
            self.alone = Some(now);
        }
        clock.stamp(now)
    }

    /// `tick` is wanted within `wait`.
    fn soon(&mut self, now: Instant, wait: Duration) {
        if let Some(clock) = &mut self.clock {
            clock.due = clock.due.min(now + wait);
        }
    }
}

fn over(down: Option<LinkEnd>) -> bool {
    matches!(down, Some(LinkEnd::Exited | LinkEnd::Killed))
}

fn verdict(
    host: ProcUid,
    down: Option<LinkEnd>,
    suspicion: &Suspicion,
    silence: Duration,
    clock: &Clock,
    now: Instant,
    settings: &Settings,
) -> Option<Action> {
    let beat = settings.beat();
    let lost = |why: String| Some(Action::Lost { host, why });
    let limit = match down {
        Some(LinkEnd::Exited) => return lost("agent exited".to_owned()),
        Some(LinkEnd::Killed) => return lost("agent killed".to_owned()),
        Some(LinkEnd::Refused) if suspicion.answered => LOST_REFUSED,
        Some(LinkEnd::Refused) if !suspicion.others => LOST_REFUSED_ALONE,
        _ => LOST,
    };
    let evidence = suspicion.vouched.map_or(silence, |v| silence.min(clock.since(v, now)));
    if evidence >= limit * beat {
        return lost(if down == Some(LinkEnd::Refused) { "agent killed".to_owned() } else { format!("silent for {}", text(silence)) });
    }
    let lives = suspicion.vouched.is_some_and(|v| v.at > suspicion.since);
    if lives && silence >= settings.reconnect + SUSPECT * beat {
        let what = match down {
            Some(LinkEnd::Reset) => "connection reset",
            Some(LinkEnd::Ended) => "connection closed",
            Some(LinkEnd::Refused) => "connection refused",
            _ => "silent",
        };
        return Some(Action::LinkLost { host, why: format!("{what} for {} while other hosts hear it", text(silence)) });
    }
    None
}

/// As durations are written elsewhere: `2.7s`, `350ms`.
fn text(time: Duration) -> String {
    let ms = time.as_millis();
    if ms < 1000 { format!("{ms}ms") } else { format!("{}s", (ms / 100) as f64 / 10.0) }
}
