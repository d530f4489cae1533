//! The failure detector: it decides which hosts of a job are lost, in one member of the job: the client, or the agent of a host.
//!
//! The detector has no input, no output and no clock. Its caller passes each heartbeat with its time, and carries out the actions that
//! `tick` returns. All times but one are multiples of the beat (`Settings::beat`), a fortieth of `host_loss_timeout`. The figures below are
//! for the default of that setting, 3 s.
//!
//! **Silence.** A host from which nothing has arrived for 3 beats is pinged. So a link with traffic costs nothing more, and an idle link
//! carries four small frames a second. After 12 beats of silence (0.9 s) the host is suspected. A suspicion is no failure: every 4 beats up
//! to three other hosts are asked when they last received a heartbeat of the suspect, and these hosts then ping it too. The latest
//! heartbeat decides, whether this member or a third host (an *indirect heartbeat*) received it. When it is 36 beats old (2.7 s), the host
//! is lost. The verdict follows a cut after at most 2.78 s, however the pings coincide with the cut. This algorithm is SWIM (Das, Gupta,
//! Motivala, 2002) with its suspicions and indirect probes. It decides by the length of the silence and not by single pings, because
//! streams delay messages but do not lose them.
//!
//! **A broken link.** A third host may have received a heartbeat of the suspect after the suspicion began. Then the suspect is alive, and
//! only the link to it is broken. The detector waits for the link while indirect heartbeats keep arriving, for `channel_reconnect_timeout`
//! at most; then the link is lost. A link of the client is lost when the lease has ended the client's work, if that is earlier. A third
//! host without a connection to the suspect opens one when it is asked. The date of an indirect heartbeat is computed from the time of the
//! question and not from the time of the answer, so a late answer never makes a dead host look alive.
//!
//! **Errors of the kernel.** A goodbye proves the end of the agent at once. EOF on all streams without a goodbye proves nothing: the kernel
//! sends it for a process that has ended, but a proxy, a load balancer or a forwarded port that closes its connections sends it too. EOF
//! begins a suspicion, and the port is dialled. If the port then refuses the connection, the agent has ended; on one machine this takes
//! less than a millisecond. Resets also come from other devices such as firewalls, which may refuse connections as well. A reset begins a
//! suspicion at once. A port that refuses connections afterwards shortens the time without heartbeats to 16 beats if another host knows the
//! suspect, and to 27 beats (2 s) if no other host can be asked. So between two hosts, a link that breaks and works again within 2 s has no
//! consequence, provided that a ping passes soon after. TCP doubles the time between its retransmissions, so after a cut of 2 s the next
//! one may be a second away. Suspects are therefore pinged with every beat, and on new connections.
//!
//! **Own starvation.** A member that did not run must not suspect others for it. The lateness of a tick shows how long this member did not
//! run or did not read. The member's clock of silences pauses for this time, so all its deadlines move. Lifeguard (Dadgar, Phillips,
//! Currey, 2018) found that most false alarms of SWIM come from slow accusers, and scales their timeouts by a score of their health; here
//! the lateness, measured directly, is this score. The bound on detection grows by the time for which the member starved.
//!
//! **Own isolation.** A member that receives nothing from any host is more likely cut off than the only one left. After 12 beats without
//! any heartbeat its clock of silences pauses until a heartbeat arrives, so it declares no host lost. An isolated agent's lease decides
//! when the agent ends. The client has no lease: it waits for `channel_reconnect_timeout`, or until the leases of its hosts have ended its
//! work if that is earlier (`lease::reconnect_limit`), and then declares all hosts lost. A client with a single host cannot distinguish the
//! two cases and does not wait, because the loss of a host must be known in time. An agent watches its client too: the client can be asked
//! about hosts, and an agent that receives its heartbeats is not isolated. `Lost` of the client only means that no heartbeat arrives: the
//! lease decides, and a client that returns is watched again.
//!
//! **Cuts in one direction.** If B receives nothing from A but A receives the heartbeats of B, then B suspects A. With a third host that
//! receives A's heartbeats, B's link to A is lost after `channel_reconnect_timeout`, and B's close of the link notifies A. Without a third
//! host, A is lost. (Over TCP both directions become silent: without acknowledgements no new data is sent.) A host whose heartbeats no host
//! receives is lost, although it receives those of all others; it is notified when the client refuses it. A host that receives no
//! heartbeat, although all others receive its heartbeats, declares no host lost and ends by its lease, with a goodbye.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wire::ProcUid;

/// Beats of silence after which a host is pinged, and beats between two pings. Suspects are pinged with every beat.
const PING: u32 = 3;
/// Beats of silence after which a host is suspected: at least two pings have no answer.
pub(super) const SUSPECT: u32 = 12;
/// Beats between two rounds of probes about a suspect. A round is answered before the next one begins, unless an answer takes 300 ms.
const PROBE: u32 = 4;
/// Beats without a direct or indirect heartbeat after which a host is lost. One beat until the next tick and the lateness of timers on a
/// busy machine keep the sum below the 40 beats of `host_loss_timeout`.
const LOST: u32 = 36;
/// The same where connections are refused and a third host has no later heartbeat: four rounds of probes.
const LOST_REFUSED: u32 = 16;
/// The same where connections are refused and no third host can be asked: 2 s, so that a shorter interruption has no consequence.
const LOST_REFUSED_ALONE: u32 = 27;
/// The number of third hosts asked in one round. It is SWIM's k, where 3 is common.
const PROBED_HOSTS: usize = 3;
/// Beats for which this member pings a host that another member has asked about: until the next round or two.
const HELP_BEATS: u32 = 10;

/// The role of this member in the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Has no lease: if it receives no heartbeats for a while, it declares all hosts lost.
    Client,
    /// Declares no host lost while it receives no heartbeats.
    Agent,
}

/// The settings of a detector, which all members of a job share except for the role.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `host_loss_timeout`
    pub loss: Duration,
    /// `channel_reconnect_timeout`
    pub reconnect: Duration,
    pub role: Role,
}

impl Settings {
    /// The unit of all times here, and the interval of ticks.
    pub fn beat(&self) -> Duration {
        (self.loss / 40).max(Duration::from_millis(1))
    }
}

/// The end of the streams of a host, or of the attempt to open new streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkEnd {
    /// The host sent a goodbye, or another agent answers at its address.
    Exited,
    /// All streams have ended without a goodbye, at least one of them with EOF.
    Ended,
    /// After the end of the streams its port has refused a connection, or another member has observed that.
    Killed,
    /// All streams were reset.
    Reset,
    /// No process listens at its address.
    Refused,
    /// A local error: timed out, no route, unreachable.
    Cut,
}

/// An action that the detector's caller carries out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a ping to the host; to a suspect on a new connection, if that may help.
    Ping(ProcUid),
    /// Ask `via` when it last received a heartbeat of `about`.
    Probe {
        via: ProcUid,
        about: ProcUid,
    },
    Suspect(ProcUid),
    Recovered(ProcUid),
    /// The host is lost, and no longer watched. `is_end_known`: its agent has ended.
    Lost {
        host: ProcUid,
        why: String,
        is_end_known: bool,
    },
    /// The host is alive, but cannot be reached. It is no longer watched.
    LinkLost {
        host: ProcUid,
        why: String,
    },
}

/// A time, and the sum of the pauses of the clock of silences until then.
#[derive(Clone, Copy)]
struct Stamp {
    at: Instant,
    paused: Duration,
}

/// The clock of silences: real time without the pauses for this member's own starvation or isolation.
struct Clock {
    /// The sum of the pauses.
    paused: Duration,
    /// The time of the last reading.
    read_at: Instant,
    /// The time of the next tick, and the latest time for it: one beat after the last tick. An event may make the tick due at once while
    /// the caller waits for the later time, so only a tick after the later time shows that this member did not run.
    due: Instant,
    due_latest: Instant,
}

impl Clock {
    /// A stamp for this real time.
    fn stamp(&self, at: Instant) -> Stamp {
        Stamp { at, paused: self.paused }
    }

    /// The time since the stamp without the pauses of the clock.
    fn since(&self, stamp: Stamp, now: Instant) -> Duration {
        now.saturating_duration_since(stamp.at).saturating_sub(self.paused.saturating_sub(stamp.paused))
    }
}

/// A suspicion of one host: the probes about it, and their results.
struct Suspicion {
    /// The time at which the suspicion began.
    since: Instant,
    /// The time of the last round of probes.
    probed_at: Option<Instant>,
    /// The hosts that have not answered a probe, with the time of the probe.
    open: BTreeMap<ProcUid, Stamp>,
    /// The latest indirect heartbeat.
    latest_indirect: Option<Stamp>,
    /// Whether there was a host to ask, and whether a host has answered.
    others: bool,
    answered: bool,
}

/// The state of one host that is watched, or pinged for another member.
struct Host {
    /// The time of the last direct or indirect heartbeat.
    last_heartbeat: Stamp,
    /// True after the first heartbeat of the host.
    known: bool,
    pinged: Option<Instant>,
    /// Another member asked about the host: ping it soon.
    wanted: bool,
    /// The host is not watched but pinged until then, because another member asked about it.
    help: Option<Instant>,
    /// The end of its streams, until the next heartbeat.
    down: Option<LinkEnd>,
    /// Its streams have ended with EOF, and no heartbeat has arrived since.
    ended: bool,
    suspicion: Option<Suspicion>,
    /// A suspicion has ended with a heartbeat, and `tick` has not reported it.
    recovered: bool,
}

impl Host {
    fn new(last_heartbeat: Stamp, help: Option<Instant>) -> Self {
        Host {
            last_heartbeat,
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

    /// Begins a suspicion, or keeps the existing one; true if it is new.
    fn suspect(&mut self, now: Instant) -> bool {
        let new = self.suspicion.is_none();
        self.suspicion.get_or_insert_with(|| Suspicion {
            since: now,
            probed_at: None,
            open: BTreeMap::new(),
            latest_indirect: None,
            others: false,
            answered: false,
        });
        new
    }
}

/// The failure detector of one member of a job. `Membership` owns it, passes events to it, and calls `tick` when `next` is due.
pub struct Detector {
    settings: Settings,
    clock: Option<Clock>,
    /// The time of the last heartbeat of any host.
    any: Option<Stamp>,
    /// The time since which this member has been isolated.
    isolated_since: Option<Instant>,
    hosts: BTreeMap<ProcUid, Host>,
    /// Suspicions that began with the end of a link, and that `tick` has not reported yet.
    fresh: Vec<ProcUid>,
    /// The index of the host that is asked in the next round, so that the hosts take turns.
    turn: usize,
}

impl Detector {
    pub fn new(settings: Settings) -> Self {
        Detector { settings, clock: None, any: None, isolated_since: None, hosts: BTreeMap::new(), fresh: vec![], turn: 0 }
    }

    // ---- events

    /// Starts watching a host; true if it was not watched before. Its silence counts from then on.
    pub fn watch(&mut self, host: ProcUid, now: Instant) -> bool {
        let stamp = self.read_clock(now);
        self.any.get_or_insert(stamp);
        let mut is_new = false;
        let entry = self.hosts.entry(host).or_insert_with(|| {
            is_new = true;
            Host::new(stamp, None)
        });
        if entry.help.take().is_some() {
            entry.last_heartbeat = stamp;
            is_new = true;
        }
        self.soon(now, self.settings.beat());
        is_new
    }

    /// Stops watching a host. No later action names it.
    pub fn forget(&mut self, host: ProcUid) {
        self.hosts.remove(&host);
        self.fresh.retain(|h| *h != host);
    }

    /// Takes a heartbeat: authenticated data of the host on any stream. The host need not be watched.
    pub fn on_heartbeat(&mut self, host: ProcUid, now: Instant) {
        let stamp = self.read_clock(now);
        (self.any, self.isolated_since) = (Some(stamp), None);
        let Some(h) = self.hosts.get_mut(&host).filter(|h| !is_final(h.down)) else { return };
        (h.last_heartbeat, h.known, h.down, h.ended) = (stamp, true, None, false);
        if h.suspicion.take().is_some() {
            // No recovery is reported for a suspicion that was never reported.
            let before = self.fresh.len();
            self.fresh.retain(|f| *f != host);
            h.recovered |= before == self.fresh.len();
            self.soon(now, Duration::ZERO);
        }
    }

    /// Takes an indirect heartbeat that another member reports from time to time. A recent one counts like a direct heartbeat.
    pub fn on_indirect_heartbeat(&mut self, host: ProcUid, age: Duration, now: Instant) {
        let stamp = self.read_clock(now);
        let beat = self.settings.beat();
        let (Some(clock), Some(at)) = (&self.clock, now.checked_sub(age)) else { return };
        let stamp = Stamp { at, ..stamp };
        let recent = clock.since(stamp, now) < SUSPECT * beat;
        let Some(h) = self.hosts.get_mut(&host).filter(|h| !is_final(h.down) && (!h.known || h.last_heartbeat.at < at)) else { return };
        (h.last_heartbeat, h.known) = (stamp, true);
        if recent && h.suspicion.as_ref().is_some_and(|s| s.since < at) {
            (h.suspicion, h.down) = (None, None);
            let before = self.fresh.len();
            self.fresh.retain(|f| *f != host);
            h.recovered |= before == self.fresh.len();
            self.soon(now, Duration::ZERO);
        }
    }

    /// The age of the last heartbeat; `None` before the first one.
    pub fn heartbeat_age(&self, host: ProcUid, now: Instant) -> Option<Duration> {
        self.hosts.get(&host).filter(|h| h.known).map(|h| now.saturating_duration_since(h.last_heartbeat.at))
    }

    /// Takes the end of all streams of a host, or a failed attempt to open new ones; true if it proves the end of its agent.
    pub fn link_down(&mut self, host: ProcUid, cause: LinkEnd, now: Instant) -> bool {
        self.read_clock(now);
        let Some(h) = self.hosts.get_mut(&host).filter(|h| h.help.is_none() && !is_final(h.down)) else { return false };
        h.ended |= cause == LinkEnd::Ended;
        let cause = if h.ended && cause == LinkEnd::Refused { LinkEnd::Killed } else { cause };
        // A refused connection is a better proof than the errors before and after it.
        if h.down != Some(LinkEnd::Refused) || is_final(Some(cause)) {
            h.down = Some(cause);
        }
        if h.suspect(now) {
            self.fresh.push(host);
        }
        self.soon(now, Duration::ZERO);
        is_final(Some(cause))
    }

    /// Takes a third host's answer to a probe: the age of its last heartbeat of the suspect, or `None`.
    pub fn on_probe_answer(&mut self, about: ProcUid, via: ProcUid, heartbeat_age: Option<Duration>, now: Instant) {
        self.read_clock(now);
        let Some(clock) = &self.clock else { return };
        let Some(suspicion) = self.hosts.get_mut(&about).and_then(|h| h.suspicion.as_mut()) else { return };
        let Some(probe) = suspicion.open.remove(&via) else { return };
        let Some(age) = heartbeat_age else { return };
        suspicion.answered = true;
        let Some(at) = probe.at.checked_sub(age) else { return };
        let latest_indirect = Stamp { at, paused: probe.paused };
        if suspicion.latest_indirect.is_none_or(|v| clock.since(v, now) > clock.since(latest_indirect, now)) {
            suspicion.latest_indirect = Some(latest_indirect);
        }
    }

    /// Takes a probe of another member: returns the age of the last heartbeat of the host. The host is pinged, so the next answer is
    /// better.
    pub fn on_probe(&mut self, about: ProcUid, now: Instant) -> Option<Duration> {
        let stamp = self.read_clock(now);
        let until = now + HELP_BEATS * self.settings.beat();
        let h = self.hosts.entry(about).or_insert_with(|| Host::new(stamp, Some(until)));
        h.help = h.help.map(|_| until);
        h.wanted = true;
        let age = h.known.then(|| now.saturating_duration_since(h.last_heartbeat.at));
        self.soon(now, Duration::ZERO);
        age
    }

    // ---- actions

    /// The time until the next call of `tick`; `None` if no host is watched.
    pub fn next(&self, now: Instant) -> Option<Duration> {
        let clock = self.clock.as_ref().filter(|_| !self.hosts.is_empty())?;
        Some(clock.due.saturating_duration_since(now))
    }

    /// The actions that are due now. It is called when the time that `next` returned has passed.
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        self.read_clock(now);
        let beat = self.settings.beat();
        let Some(clock) = self.clock.as_mut() else { return vec![] };
        (clock.due, clock.due_latest) = (now + beat, now + beat);
        let clock = &*clock;
        self.hosts.retain(|_, h| h.help.is_none_or(|until| now < until));
        // A host may have recovered and be suspected again since the last tick.
        let recovered = self.hosts.iter_mut().filter_map(|(host, h)| std::mem::take(&mut h.recovered).then_some(Action::Recovered(*host)));
        let mut actions: Vec<Action> = recovered.collect();
        actions.extend(self.fresh.drain(..).map(Action::Suspect));
        for (host, h) in &mut self.hosts {
            let quiet = now.saturating_duration_since(h.last_heartbeat.at);
            // A suspect is pinged with every beat: the connection may work only for a moment.
            let often = std::mem::take(&mut h.wanted) || h.suspicion.is_some();
            let every = if often { beat } else { PING * beat };
            if quiet >= every && h.pinged.is_none_or(|at| now.saturating_duration_since(at) >= every) {
                h.pinged = Some(now);
                actions.push(Action::Ping(*host));
            }
            if h.help.is_none() && clock.since(h.last_heartbeat, now) >= SUSPECT * beat && h.suspect(now) {
                actions.push(Action::Suspect(*host));
            }
        }
        let well: Vec<ProcUid> =
            self.hosts.iter().filter(|(_, h)| h.known && h.help.is_none() && h.suspicion.is_none()).map(|(host, _)| *host).collect();
        let mut ended = vec![];
        for (host, h) in &mut self.hosts {
            let Some(suspicion) = &mut h.suspicion else { continue };
            let silence = clock.since(h.last_heartbeat, now);
            if let Some(action) = verdict(*host, h.down, suspicion, silence, clock, now, &self.settings) {
                ended.push(*host);
                actions.push(action);
            } else if suspicion.probed_at.is_none_or(|at| now.saturating_duration_since(at) >= PROBE * beat) {
                suspicion.probed_at = Some(now);
                suspicion.others |= !well.is_empty();
                for via in well.iter().cycle().skip(self.turn % well.len().max(1)).take(PROBED_HOSTS.min(well.len())) {
                    suspicion.open.entry(*via).or_insert(clock.stamp(now));
                    actions.push(Action::Probe { via: *via, about: *host });
                }
                self.turn = self.turn.wrapping_add(PROBED_HOSTS);
            }
        }
        ended.into_iter().for_each(|host| drop(self.hosts.remove(&host)));
        actions
    }

    /// True if this member receives no heartbeats of any host, and is probably cut off itself.
    pub fn is_isolated(&self) -> bool {
        self.isolated_since.is_some()
    }

    /// Reads the clock of silences. It pauses for the time by which a tick is late, and while this member is isolated.
    fn read_clock(&mut self, now: Instant) -> Stamp {
        let (beat, watched) = (self.settings.beat(), self.hosts.values().filter(|h| h.help.is_none()).take(2).count());
        let (isolation_limit, others) = match self.settings.role {
            Role::Agent => (Duration::MAX, 1),
            Role::Client => (self.settings.reconnect.saturating_sub((LOST - SUSPECT) * beat), 2),
        };
        let clock = self.clock.get_or_insert(Clock { paused: Duration::ZERO, read_at: now, due: now + beat, due_latest: now + beat });
        let late = now.saturating_duration_since(clock.due_latest);
        if self.isolated_since.is_some_and(|since| now.saturating_duration_since(since) < isolation_limit) {
            clock.paused += now.saturating_duration_since(clock.read_at);
        } else if late > beat && !self.hosts.is_empty() {
            clock.paused += late;
        }
        if late > beat {
            (clock.due, clock.due_latest) = (now, now);
        }
        clock.read_at = clock.read_at.max(now);
        if self.isolated_since.is_none() && watched >= others && self.any.is_some_and(|any| clock.since(any, now) >= SUSPECT * beat) {
            self.isolated_since = Some(now);
        }
        clock.stamp(now)
    }

    /// Plans the next `tick` within `wait`.
    fn soon(&mut self, now: Instant, wait: Duration) {
        if let Some(clock) = &mut self.clock {
            clock.due = clock.due.min(now + wait);
        }
    }
}

/// True if the end of the streams proves the end of the agent.
fn is_final(down: Option<LinkEnd>) -> bool {
    matches!(down, Some(LinkEnd::Exited | LinkEnd::Killed))
}

/// The decision about a suspect: its host is lost, its link is lost, or none yet.
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
    let is_end_known = is_final(down) || down == Some(LinkEnd::Refused);
    let lost = |why: String| Some(Action::Lost { host, why, is_end_known });
    let limit = match down {
        Some(LinkEnd::Exited) => return lost("agent exited".to_owned()),
        Some(LinkEnd::Killed) => return lost("agent killed".to_owned()),
        Some(LinkEnd::Refused) if suspicion.answered => LOST_REFUSED,
        Some(LinkEnd::Refused) if !suspicion.others => LOST_REFUSED_ALONE,
        _ => LOST,
    };
    let shortest_silence = suspicion.latest_indirect.map_or(silence, |v| silence.min(clock.since(v, now)));
    if shortest_silence >= limit * beat {
        return lost(if down == Some(LinkEnd::Refused) {
            "agent killed".to_owned()
        } else {
            format!("silent for {}", format_duration(silence))
        });
    }
    let lives = suspicion.latest_indirect.is_some_and(|v| v.at > suspicion.since);
    if lives && silence >= settings.reconnect + SUSPECT * beat {
        let what = match down {
            Some(LinkEnd::Reset) => "connection reset",
            Some(LinkEnd::Ended) => "connection closed",
            Some(LinkEnd::Refused) => "connection refused",
            _ => "silent",
        };
        return Some(Action::LinkLost { host, why: format!("{what} for {} while other hosts hear it", format_duration(silence)) });
    }
    None
}

/// A duration in the format of other texts: `2.7s`, `350ms`.
fn format_duration(time: Duration) -> String {
    let ms = time.as_millis();
    if ms < 1000 { format!("{ms}ms") } else { format!("{}s", (ms / 100) as f64 / 10.0) }
}
