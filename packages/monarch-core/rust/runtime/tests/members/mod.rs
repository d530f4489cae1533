//! Members of a job with a detector each, on simulated time and a simulated network. Messages take a random time, and some are lost. Any
//! direction between two members can be cut for a while. Members can be starved (they neither read nor tick), and can end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use runtime::membership::detector::{Action, Detector, LinkEnd, Role, Settings};
use wire::ProcUid;

pub type Member = usize;
/// The client. Reports of agents about it do not end it: their leases decide.
pub const CLIENT: Member = 0;

/// A span of time, from one time until another.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: Duration,
    pub to: Duration,
}

impl Span {
    pub fn new(from: Duration, len: Duration) -> Self {
        Span { from, to: from.saturating_add(len) }
    }

    fn has(&self, t: Duration) -> bool {
        self.from <= t && t < self.to
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// No message passes from the first member to the second.
    OneWay(Member, Member, Span),
    TwoWays(Member, Member, Span),
    /// No message passes to the member, from it, or both.
    Off {
        member: Member,
        deaf: bool,
        mute: bool,
        span: Span,
    },
    /// The member gets no CPU time.
    Starved(Member, Span),
    /// The process of the member ends, and the kernel reports that to the members linked to it.
    Dies(Member, LinkEnd, Duration),
}

impl Fault {
    fn cuts(&self, from: Member, to: Member, t: Duration) -> bool {
        match *self {
            Fault::OneWay(a, b, span) => (a, b) == (from, to) && span.has(t),
            Fault::TwoWays(a, b, span) => ((a, b) == (from, to) || (b, a) == (from, to)) && span.has(t),
            Fault::Off { member, deaf, mute, span } => ((deaf && member == to) || (mute && member == from)) && span.has(t),
            Fault::Starved(..) => false,
            Fault::Dies(a, _, at) => (a == from || a == to) && t >= at,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Network {
    /// Every message takes this time and up to as much again; one in ten takes up to `jitter` more.
    pub latency: Duration,
    pub jitter: Duration,
    /// The number of lost messages in a thousand.
    pub drops: u64,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Ping,
    Pong,
    Probe(Member),
    Answer(Member, Option<Duration>),
    End(LinkEnd),
}

#[derive(Debug)]
enum Event {
    Arrives { from: Member, to: Member, message: Message },
    Tick(Member),
    Dies(Member, LinkEnd),
}

/// An action that a member has taken about another one.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub at: Duration,
    pub by: Member,
    pub action: Action,
    /// When the last heartbeat of the other member had arrived.
    pub last_heartbeat: Duration,
}

pub struct World {
    start: Instant,
    now: Duration,
    network: Network,
    faults: Vec<Fault>,
    detectors: Vec<Detector>,
    events: BTreeMap<u64, Event>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    count: u64,
    /// The id of each member's next tick, and when it is due. Other ticks in the queue are stale.
    ticks: Vec<Option<(Duration, u64)>>,
    last_heartbeat: Vec<Vec<Duration>>,
    over: Vec<Vec<bool>>,
    random: u64,
    pub reported: Vec<Verdict>,
}

pub fn uid(member: Member) -> ProcUid {
    ProcUid(member as u64 + 1)
}

fn member(uid: ProcUid) -> Member {
    uid.0 as usize - 1
}

/// The member that an action is about.
pub fn about(action: &Action) -> Member {
    match action {
        Action::Ping(host) | Action::Suspect(host) | Action::Recovered(host) => member(*host),
        Action::Probe { about, .. } => member(*about),
        Action::Lost { host, .. } | Action::LinkLost { host, .. } => member(*host),
    }
}

impl World {
    /// All members watch each other.
    pub fn new(members: usize, loss: Duration, reconnect: Duration, network: Network, faults: Vec<Fault>, seed: u64) -> Self {
        let start = Instant::now();
        let role = |m| if m == CLIENT { Role::Client } else { Role::Agent };
        let mut world = World {
            start,
            now: Duration::ZERO,
            network,
            detectors: (0..members).map(|m| Detector::new(Settings { loss, reconnect, role: role(m) })).collect(),
            events: BTreeMap::new(),
            queue: BinaryHeap::new(),
            count: 0,
            ticks: vec![None; members],
            last_heartbeat: vec![vec![Duration::ZERO; members]; members],
            over: vec![vec![false; members]; members],
            random: seed | 1,
            reported: vec![],
            faults: vec![],
        };
        for fault in &faults {
            if let Fault::Dies(m, end, at) = *fault {
                world.add(at, Event::Dies(m, end));
            }
        }
        world.faults = faults;
        for m in 0..members {
            for other in (0..members).filter(|o| *o != m) {
                world.detectors[m].watch(uid(other), start);
            }
            world.plan(m);
        }
        world
    }

    /// A random number below `n`, by xorshift64 (Marsaglia, 2003).
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n.max(1)
    }

    fn fraction(&mut self, of: Duration) -> Duration {
        of * self.below(1 << 16) as u32 / (1 << 16)
    }

    fn add(&mut self, at: Duration, event: Event) -> u64 {
        self.count += 1;
        self.events.insert(self.count, event);
        self.queue.push(Reverse((at, self.count)));
        self.count
    }

    fn send(&mut self, from: Member, to: Member, message: Message) {
        let kernel = matches!(message, Message::End(_));
        let mut takes = self.network.latency + self.fraction(self.network.latency);
        if self.below(10) == 0 {
            takes += self.fraction(self.network.jitter);
        }
        let at = self.now + takes;
        let cut = self.faults.iter().any(|f| !kernel && (f.cuts(from, to, self.now) || f.cuts(from, to, at)));
        if !cut && (kernel || self.below(1000) >= self.network.drops) {
            self.add(at, Event::Arrives { from, to, message });
        }
    }

    /// When the starvation of a member ends; none if it is not starved.
    fn starved(&self, m: Member) -> Option<Duration> {
        let ends = self.faults.iter().filter_map(|f| match f {
            Fault::Starved(starved, span) if *starved == m && span.has(self.now) => Some(span.to),
            _ => None,
        });
        ends.max()
    }

    fn dead(&self, m: Member) -> bool {
        self.faults.iter().any(|f| matches!(f, Fault::Dies(d, _, at) if *d == m && *at <= self.now))
    }

    /// Schedules the next tick of a member, up to 5 ms late, as timers are.
    fn plan(&mut self, m: Member) {
        let Some(wait) = self.detectors[m].next(self.start + self.now) else { return };
        let due = self.now + wait;
        if self.ticks[m].is_none_or(|(at, _)| due < at) {
            let at = due + self.fraction(Duration::from_millis(5));
            let id = self.add(at, Event::Tick(m));
            self.ticks[m] = Some((due, id));
        }
    }

    pub fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, id))) = self.queue.peek().copied().filter(|Reverse((at, _))| *at <= end) {
            self.queue.pop();
            self.now = at;
            let Some(event) = self.events.remove(&id) else { continue };
            let m = match event {
                Event::Arrives { to, .. } => to,
                Event::Tick(m) | Event::Dies(m, _) => m,
            };
            if let Event::Dies(_, end) = event {
                (0..self.detectors.len()).filter(|o| *o != m).for_each(|o| self.send(m, o, Message::End(end)));
            } else if self.dead(m) {
            } else if let Some(until) = self.starved(m) {
                // A member that runs again reads or ticks first, by chance.
                let later = until + self.fraction(Duration::from_millis(2));
                let id = self.add(later, event);
                if let Some(Event::Tick(_)) = self.events.get(&id) {
                    self.ticks[m] = Some((later, id));
                }
            } else {
                self.happens(m, event, id);
                self.plan(m);
            }
        }
        self.now = end;
    }

    fn happens(&mut self, m: Member, event: Event, id: u64) {
        let now = self.start + self.now;
        match event {
            Event::Tick(_) if self.ticks[m].is_none_or(|(_, planned)| planned != id) => {}
            Event::Tick(_) => {
                self.ticks[m] = None;
                let actions = self.detectors[m].tick(now);
                actions.into_iter().for_each(|action| self.acts(m, action));
            }
            // A member that has been declared lost is refused.
            Event::Arrives { from, .. } if self.over[m][from] => {}
            Event::Arrives { from, message: Message::End(end), .. } => drop(self.detectors[m].link_down(uid(from), end, now)),
            Event::Arrives { from, message, .. } => {
                self.last_heartbeat[m][from] = self.now;
                if from == CLIENT {
                    self.detectors[m].watch(uid(from), now);
                }
                self.detectors[m].on_heartbeat(uid(from), now);
                match message {
                    Message::Ping => self.send(m, from, Message::Pong),
                    Message::Probe(about) => {
                        let ago = self.detectors[m].on_probe(uid(about), now);
                        self.send(m, from, Message::Answer(about, ago));
                    }
                    Message::Answer(about, ago) => self.detectors[m].on_probe_answer(uid(about), uid(from), ago, now),
                    Message::Pong | Message::End(_) => {}
                }
            }
            Event::Dies(..) => {}
        }
    }

    fn acts(&mut self, m: Member, action: Action) {
        let other = about(&action);
        match action {
            Action::Ping(_) => self.send(m, other, Message::Ping),
            Action::Probe { via, .. } => self.send(m, member(via), Message::Probe(other)),
            action => {
                self.over[m][other] |= other != CLIENT && matches!(action, Action::Lost { .. } | Action::LinkLost { .. });
                self.reported.push(Verdict { at: self.now, by: m, action, last_heartbeat: self.last_heartbeat[m][other] });
            }
        }
    }

    /// True if the agent receives no heartbeats now.
    pub fn is_isolated(&self, m: Member) -> bool {
        self.detectors[m].is_isolated()
    }

    /// The actions that end a host or a link.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.reported.iter().filter(|s| about(&s.action) != CLIENT && matches!(s.action, Action::Lost { .. } | Action::LinkLost { .. }))
    }
}
