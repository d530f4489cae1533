//! Notices of ended processes, passed along a tree over all hosts of a job. A notice travels up and down the tree from the host that
//! detected the end.
//!
//! Each edge carries each end once, so the root handles as many messages as it has neighbours, however many hosts the job has. The first
//! notice is sent at once. Ends that follow within a window are sent together, and the window doubles while there are more, so a hundred
//! ends within a second are a handful of messages on each edge. When a host of the tree has ended, the next host of its span replaces it.
//! The replacement and all its descendants receive all known ends, because the ended host may not have passed on some of them. The children
//! of an ended host use its replacement as their parent, or else its next live ancestor.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use wire::notice::{Ended, Notice, Roster};
use wire::{ProcUid, Span};

use super::fan_out::{FAN_OUT, divide, head};

/// The wait after the first notice; the longest wait is 16 times as long. A user does not notice the sum of four hops with it.
pub const WINDOW: Duration = Duration::from_millis(2);
/// The longest wait, in units of `WINDOW`.
const WIDEST: u32 = 16;

/// An action of `Notices` for its caller, the gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoticeEffect {
    Send {
        to: ProcUid,
        notice: Notice,
    },
    /// These ends are new to this process: report them to its components.
    Report(Vec<Ended>),
}

/// A neighbour in the tree, and the ends that it has not been sent.
struct Neighbour {
    uid: ProcUid,
    /// The span that a child passes notices on to; empty for the parent.
    span: Span,
    news: Vec<ProcUid>,
    /// The neighbour is to get all known ends.
    whole: bool,
    knows_roster: bool,
}

impl Neighbour {
    fn new(uid: ProcUid, span: Span, whole: bool) -> Self {
        Neighbour { uid, span, news: vec![], whole, knows_roster: false }
    }
}

/// The ends that a host knows, its neighbours in the tree, and the notices to send.
pub struct Notices {
    me: ProcUid,
    fan_out: u32,
    roster: Arc<Roster>,
    known: HashMap<ProcUid, Ended>,
    /// The ended processes, in the order in which this host learned of them.
    order: Vec<ProcUid>,
    dead: HashSet<ProcUid>,
    parent: Option<Neighbour>,
    children: Vec<Neighbour>,
    /// No notice is sent before this time.
    not_before: Duration,
    window: u32,
    at: Option<Duration>,
}

impl Notices {
    pub fn new(me: ProcUid) -> Self {
        Notices::with_fan_out(me, FAN_OUT)
    }

    pub fn with_fan_out(me: ProcUid, fan_out: u32) -> Self {
        Notices {
            me,
            fan_out,
            roster: Arc::default(),
            known: HashMap::new(),
            order: vec![],
            dead: HashSet::new(),
            parent: None,
            children: vec![],
            not_before: Duration::ZERO,
            window: 1,
            at: None,
        }
    }

    /// At the root: sets the hosts of the job that have joined.
    pub fn set_hosts(&mut self, now: Duration, hosts: Vec<ProcUid>) -> Vec<NoticeEffect> {
        self.set_roster(now, Arc::new(Roster { version: self.roster.version + 1, start: 0, hosts, ancestors: vec![] }), true);
        self.due(now)
    }

    pub fn knows(&self, uid: ProcUid) -> bool {
        self.known.contains_key(&uid)
    }

    /// The hosts that this host exchanges notices with. The caller reports their end to `on_ended`.
    pub fn neighbours(&self) -> impl Iterator<Item = ProcUid> {
        self.children.iter().chain(&self.parent).map(|n| n.uid)
    }

    fn span(roster: &Roster) -> Span {
        Span::new(roster.start, roster.start + roster.hosts.len() as u32)
    }

    fn host(roster: &Roster, position: u32) -> Option<ProcUid> {
        roster.hosts.get(position.checked_sub(roster.start)? as usize).copied()
    }

    /// Replaces the roster and the neighbours. All children get the new roster.
    fn set_roster(&mut self, now: Duration, roster: Arc<Roster>, whole: bool) {
        let own = roster.hosts.iter().position(|h| *h == self.me).map(|at| roster.start + at as u32);
        let heads = divide(Self::span(&roster), own, self.fan_out).into_iter();
        let heads = heads.filter_map(|part| head(part, |p| Self::host(&roster, p), |h| self.dead.contains(&h)));
        // Ends that the old neighbours have not been sent go to the new neighbours with all the others.
        let whole = whole || !self.order.is_empty();
        self.children = heads.map(|(uid, span)| Neighbour::new(uid, span, whole)).collect();
        self.roster = roster;
        self.choose_parent(now);
    }

    /// Uses the next live ancestor as the parent.
    fn choose_parent(&mut self, now: Duration) {
        let next = self.roster.ancestors.iter().find(|h| !self.dead.contains(h)).copied();
        if next != self.parent.as_ref().map(|n| n.uid) {
            let news = self.order.clone();
            // The new parent first gets a moment to send the ends that it knows, so that its new children do not all repeat the same ends.
            if self.parent.is_some() {
                self.not_before = self.not_before.max(now + WINDOW);
            }
            self.parent = next.map(|uid| Neighbour { news, knows_roster: true, ..Neighbour::new(uid, Span::new(0, 0), false) });
        }
    }

    /// Takes ends that this host has detected.
    pub fn on_ended(&mut self, now: Duration, ended: Vec<Ended>) -> Vec<NoticeEffect> {
        let mut out = self.learn(now, None, ended);
        out.extend(self.due(now));
        out
    }

    /// Takes a notice of a neighbour.
    pub fn on_notice(&mut self, now: Duration, from: ProcUid, notice: Notice) -> Vec<NoticeEffect> {
        // The roster is taken first, so that new ends go to the new neighbours. Of two parents that both send a roster (each may be right
        // about ended hosts) the one with the larger part takes precedence.
        let mine = (self.roster.version, self.roster.hosts.len());
        match notice.roster.filter(|r| (r.version, r.hosts.len()) >= mine) {
            Some(roster) => self.set_roster(now, roster, notice.whole),
            None => self.children.iter_mut().for_each(|n| n.whole |= notice.whole),
        }
        let mut out = self.learn(now, Some(from), notice.ended);
        out.extend(self.due(now));
        out
    }

    /// Adds new ends, and queues them for all neighbours except their sender.
    fn learn(&mut self, now: Duration, from: Option<ProcUid>, ended: Vec<Ended>) -> Vec<NoticeEffect> {
        if let Some(n) = self.children.iter_mut().chain(&mut self.parent).find(|n| Some(n.uid) == from) {
            n.news.retain(|uid| !ended.iter().any(|e| e.uid == *uid));
        }
        let fresh: Vec<Ended> = ended.into_iter().filter(|e| !self.known.contains_key(&e.uid)).collect();
        if fresh.is_empty() {
            return vec![];
        }
        for e in &fresh {
            self.known.insert(e.uid, e.clone());
            self.order.push(e.uid);
            if e.host {
                self.dead.insert(e.uid);
            }
            let others = self.children.iter_mut().chain(&mut self.parent).filter(|n| Some(n.uid) != from);
            others.for_each(|n| n.news.push(e.uid));
        }
        self.replace_dead(now);
        vec![NoticeEffect::Report(fresh)]
    }

    /// Replaces neighbours that have ended by the next live hosts of their spans.
    fn replace_dead(&mut self, now: Duration) {
        for n in std::mem::take(&mut self.children) {
            if !self.dead.contains(&n.uid) {
                self.children.push(n);
            } else if let Some((uid, span)) = head(n.span, |p| Self::host(&self.roster, p), |h| self.dead.contains(&h)) {
                self.children.push(Neighbour::new(uid, span, true));
            }
        }
        self.choose_parent(now);
    }

    /// The time of the next call of `on_time`.
    pub fn deadline(&self) -> Option<Duration> {
        self.at
    }

    /// Sends the notices that are due now.
    pub fn on_time(&mut self, now: Duration) -> Vec<NoticeEffect> {
        self.at = None;
        self.due(now)
    }

    /// Sends the pending notices, or plans the time at which they may be sent.
    fn due(&mut self, now: Duration) -> Vec<NoticeEffect> {
        let anything = self.children.iter().any(|n| n.whole || !n.knows_roster || !n.news.is_empty());
        if !anything && self.parent.as_ref().is_none_or(|n| n.news.is_empty()) {
            return vec![];
        }
        if now < self.not_before {
            self.at = Some(self.not_before);
            return vec![];
        }
        // Ends that are noticed soon after these probably have the same cause.
        let calm = now >= self.not_before + WINDOW * self.window;
        self.window = if calm { 1 } else { (self.window * 2).min(WIDEST) };
        self.not_before = now + WINDOW * self.window;
        self.at = None;
        let mut out = vec![];
        // The host that replaces this one when it ends: the children then use it as their parent.
        let own = self.roster.hosts.iter().position(|h| *h == self.me);
        let replacement = own.and_then(|at| self.roster.hosts.get(at + 1)).copied();
        for n in self.children.iter_mut().chain(&mut self.parent) {
            let news = std::mem::take(&mut n.news);
            let whole = std::mem::take(&mut n.whole);
            if news.is_empty() && !whole && n.knows_roster {
                continue;
            }
            let named = if whole { &self.order } else { &news };
            let ended = named.iter().filter_map(|uid| self.known.get(uid)).cloned().collect();
            let roster = (!std::mem::replace(&mut n.knows_roster, true)).then(|| {
                let at = |p: u32| (p - self.roster.start) as usize;
                let hosts = self.roster.hosts[at(n.span.start)..at(n.span.end)].to_vec();
                let replacement = replacement.filter(|h| *h != n.uid);
                let ancestors = std::iter::once(self.me).chain(replacement).chain(self.roster.ancestors.iter().copied()).collect();
                Arc::new(Roster { version: self.roster.version, start: n.span.start, hosts, ancestors })
            });
            out.push(NoticeEffect::Send { to: n.uid, notice: Notice { span: n.span, whole, roster, ended } });
        }
        out
    }
}
