//! The tree by which the hosts of a job have joined, and the frames that go along it.
//!
//! The client has sessions with connections to the hosts that it has joined itself. A host that another host has joined on the client's
//! behalf is *below*: its relay has the connection, and the frames between it and the client go host by host along the tree, in their
//! order. The session between the client and such a host counts and keeps frames as usual, so the client can open connections of its own at
//! any time: when a host on the route is silent or lost, or when the traffic is worth it. Then the host is *adopted*, and is like a host
//! that the client has joined itself. Two agents that send to each other open a session of their own.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use net::dial::Handshake;
use net::lock::lock;
use net::trunk::Trunk;
use wire::cursor::Cursor;
use wire::frame::{CARRIED, TREE};
use wire::greeting::{self, Beat};
use wire::join_tree::{Along, Ending, Word};
use wire::{Control, ProcUid};

use super::joins::Run;
use super::{Gateway, Host, Job};
use crate::detector::LinkEnd;

/// Bytes between the client and a host below after which a connection is worth it.
const WORTH_A_STREAM: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Tree {
    /// Of an agent: who has given it something to do, or what the client says to it.
    pub parent: Option<ProcUid>,
    /// Whom this process has joined for the client; in the client nobody.
    pub children: BTreeSet<ProcUid>,
    /// Hosts below, and the neighbour that they are below of; in the client without those that are adopted.
    pub below: HashMap<ProcUid, ProcUid>,
    /// Of an agent: when those below children were heard.
    pub heard: HashMap<ProcUid, Instant>,
    /// Of the client: who has joined whom.
    pub parents: HashMap<ProcUid, ProcUid>,
    /// Of the client: hosts that know of all others.
    pub told: HashSet<ProcUid>,
    pub telling: bool,
    pub runs: Vec<Run>,
    /// Joins that wait for the client's signature, by the host.
    pub signing: HashMap<ProcUid, Weak<Handshake>>,
    /// When the client was spoken of to those below.
    pub spoke: Option<Instant>,
}

impl Job {
    /// Hosts were joined by others.
    pub(super) fn has_tree(&self) -> bool {
        !lock(&self.tree).parents.is_empty()
    }

    /// Those that the client has no streams of its own to.
    pub fn hosts_below(&self) -> Vec<ProcUid> {
        if self.is_clients() { lock(&self.tree).below.keys().copied().collect() } else { vec![] }
    }

    /// Whether the client has no streams of its own to this host.
    pub(super) fn is_below(&self, host: ProcUid) -> bool {
        self.is_clients() && lock(&self.tree).below.contains_key(&host)
    }

    /// The client is heard on streams of this process's own.
    pub(super) fn hears_client(&self) -> bool {
        self.host(self.id).is_some_and(|c| c.trunk.has_heart())
    }

    /// The next host on the way.
    fn next(&self, to: ProcUid) -> Option<ProcUid> {
        let tree = lock(&self.tree);
        if self.is_clients() {
            return Some(tree.below.get(&to).copied().unwrap_or(to));
        }
        if to == self.id {
            return tree.parent;
        }
        if tree.children.contains(&to) { Some(to) } else { tree.below.get(&to).copied() }
    }

    /// Where news for the client go: who is above, or the client, if it has opened streams.
    pub(super) fn above(&self) -> ProcUid {
        let direct = self.host(self.id).is_some_and(|c| c.trunk.is_up() && !c.trunk.is_routed());
        let parent = lock(&self.tree).parent;
        parent.filter(|p| !direct && self.host(*p).is_some_and(|h| h.lost().is_none())).unwrap_or(self.id)
    }

    fn send_along(&self, via: ProcUid, frame: &[u8]) {
        if let Some(host) = self.host(via).filter(|h| h.lost().is_none()) {
            // Of one that is lost those below are adopted, and what they had not got is sent again.
            let _ = host.trunk.send(&[frame]);
        }
    }
}

impl Gateway {
    // ---- on its way

    /// Bytes of a trunk without a stream.
    pub(super) fn carry(&self, job: &Arc<Job>, trunk: &Trunk, bytes: &[u8]) {
        // To one that is being adopted they go over its streams, again.
        if let Some(via) = job.next(trunk.host).filter(|via| *via != trunk.host) {
            self.count_carried(job, trunk.host, bytes.len());
            job.send_along(via, &Along { to: trunk.host, from: job.here }.frame(CARRIED, bytes));
        }
    }

    /// A word for a host, by way of whoever is next.
    pub(super) fn say(&self, job: &Job, to: ProcUid, word: &Word) {
        let via = if to == job.id { Some(job.above()) } else { job.next(to) };
        if let Some(via) = via {
            job.send_along(via, &Along { to, from: job.here }.frame(TREE, &greeting::encode(word)));
        }
    }

    /// A word for a neighbour.
    pub(super) fn say_next(&self, job: &Job, to: ProcUid, word: &Word) {
        job.send_along(to, &Along { to, from: job.here }.frame(TREE, &greeting::encode(word)));
    }

    /// To all hosts of the client, or all that are below; those pass it on.
    pub(super) fn spread(&self, job: &Job, word: &Word) {
        let next: Vec<ProcUid> = if job.is_clients() {
            let below: HashSet<ProcUid> = lock(&job.tree).below.keys().copied().collect();
            let direct = job.hosts().into_iter().filter(|h| !below.contains(&h.id) && super::lock_state(h).joined);
            direct.map(|h| h.id).collect()
        } else {
            lock(&job.tree).children.iter().copied().collect()
        };
        next.into_iter().for_each(|host| self.say_next(job, host, word));
    }

    /// What a neighbour has sent along the tree.
    pub(super) fn came_along(&self, job: &Arc<Job>, via: ProcUid, frame: &[u8]) {
        let Ok(head) = Along::read(&mut Cursor::new(&frame[1..])) else { return };
        let body = &frame[1 + Along::LEN..];
        if head.to != job.here {
            if head.to == job.id {
                // Answers come back this way, before it is known who has joined whom.
                lock(&job.tree).below.entry(head.from).or_insert(via);
            }
            if let Some(next) = job.next(head.to).filter(|next| *next != via)
                && let Some(host) = job.host(next).filter(|h| h.lost().is_none())
            {
                let _ = host.trunk.send(&[&(frame.len() as u32).to_le_bytes(), frame]);
            }
            return;
        }
        if frame[0] == CARRIED {
            let Some(host) = job.host(head.from) else { return };
            self.count_carried(job, head.from, body.len());
            return host.trunk.brought(body);
        }
        if let Some(word) = greeting::decode(body) {
            self.word(job, via, head.from, word);
        }
    }

    fn count_carried(&self, job: &Arc<Job>, host: ProcUid, bytes: usize) {
        if !job.is_clients() {
            return;
        }
        let Some(host) = job.host(host) else { return };
        let before = host.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        if before < WORTH_A_STREAM && before + bytes as u64 >= WORTH_A_STREAM {
            self.adopt_soon(job, vec![host.id]);
        }
    }

    fn word(&self, job: &Arc<Job>, via: ProcUid, from: ProcUid, word: Word) {
        match word {
            Word::Part { run, within_ms, fan_out, workers } if !job.is_clients() => {
                lock(&job.tree).parent = Some(via);
                self.part_given(job, run, within_ms, fan_out, workers);
            }
            Word::Report { run, joined, failed } => self.reported(job, via, run, joined, failed),
            Word::Certify { host, key } if job.is_clients() => {
                let certificate = self.certify(job, host, &key);
                let word = Word::Certified { host, certificate };
                job.send_along(via, &Along { to: from, from: job.here }.frame(TREE, &greeting::encode(&word)));
            }
            Word::Certified { host, certificate } => {
                let waiting = lock(&job.tree).signing.remove(&host).and_then(|h| h.upgrade());
                if let Some(waiting) = waiting {
                    let go_on = move || match certificate {
                        Some(certificate) => waiting.certified(certificate),
                        None => waiting.give_up(),
                    };
                    self.poller.spawn(Box::new(go_on));
                }
            }
            Word::Begin { session } if !job.is_clients() => {
                lock(&job.tree).parent = Some(via);
                let Some(client) = job.host(job.id) else { return };
                {
                    let mut state = lock(&client.state);
                    if state.session != 0 {
                        return;
                    }
                    (state.session, state.was_up) = (session, true);
                }
                client.trunk.begin_route();
            }
            Word::Ended { host, how } if job.is_below(host) => {
                let end = match how {
                    Ending::Exited => LinkEnd::Exited,
                    Ending::Killed => LinkEnd::Killed,
                    Ending::Reset => LinkEnd::Reset,
                    Ending::Cut => LinkEnd::Cut,
                };
                lock(&job.detector).link_down(host, end, self.poller.now());
            }
            Word::Beat(beat) => {
                if let Some(host) = job.host(from) {
                    self.on_beat(job, &host, beat);
                }
            }
            spread @ (Word::Hosts { .. } | Word::HostsLost { .. } | Word::JobOver) if !job.is_clients() => {
                if spread != Word::JobOver {
                    self.spread(job, &spread);
                }
                match spread {
                    Word::Hosts { hosts } => self.control(job.id, Control::Hosts { hosts }),
                    Word::HostsLost { hosts } => self.control(job.id, Control::HostsLost { hosts }),
                    _ => self.control(job.id, Control::JobOver),
                }
            }
            _ => {}
        }
    }

    pub(super) fn carry_beat(&self, job: &Job, to: ProcUid, beat: &Beat) {
        self.say(job, to, &Word::Beat(beat.clone()));
    }

    // ---- who is above and below

    /// The streams to a host have ended: the client is notified, if it has none of its own.
    pub(super) fn child_ended(&self, job: &Job, host: ProcUid, how: Ending) {
        if lock(&job.tree).children.contains(&host) {
            self.say(job, job.id, &Word::Ended { host, how });
        }
    }

    /// The client opens streams of its own to these hosts, which are below.
    pub(super) fn adopt_soon(&self, job: &Arc<Job>, hosts: Vec<ProcUid>) {
        if hosts.is_empty() {
            return;
        }
        let (me, job) = (self.me.clone(), job.clone());
        // Whoever finds that out may hold a trunk's locks.
        let task = move || {
            if let Some(g) = me.upgrade() {
                hosts.into_iter().filter_map(|id| job.host(id)).for_each(|host| g.adopt(&job, &host));
            }
        };
        self.poller.spawn(Box::new(task));
    }

    fn adopt(&self, job: &Arc<Job>, host: &Arc<Host>) {
        if self.leave_tree(job, host) && host.lost().is_none() {
            self.audit("adopted", &host.name(), String::new());
            self.open(job, host);
        }
    }

    /// From now on the client has streams of its own to this host, or none; true if it had not.
    pub(super) fn leave_tree(&self, job: &Job, host: &Arc<Host>) -> bool {
        if !job.is_clients() || lock(&job.tree).below.remove(&host.id).is_none() {
            return false;
        }
        host.trunk.leave_route();
        lock(&host.state).dials = true;
        true
    }

    /// A host is lost. Those below it are the client's own from now on.
    pub(super) fn lost_in_tree(&self, job: &Arc<Job>, host: ProcUid) {
        if !job.is_clients() {
            {
                let mut tree = lock(&job.tree);
                tree.parent = tree.parent.filter(|p| *p != host);
                tree.children.remove(&host);
                tree.below.retain(|id, via| *via != host && *id != host);
                tree.heard.remove(&host);
            }
            return self.run_lost(job, host);
        }
        let (orphans, heads) = {
            let mut tree = lock(&job.tree);
            tree.below.remove(&host);
            let parents = &tree.parents;
            let is_below = |mut at: ProcUid| {
                // By as many steps as the tree is deep.
                while let Some(above) = parents.get(&at) {
                    if *above == host {
                        return true;
                    }
                    at = *above;
                }
                false
            };
            let orphans: Vec<ProcUid> = tree.below.keys().copied().filter(|id| is_below(*id)).collect();
            let heads: Vec<ProcUid> = parents.iter().filter(|(_, above)| **above == host).map(|(id, _)| *id).collect();
            (orphans, heads)
        };
        self.adopt_soon(job, orphans);
        // It may have kept news to itself.
        if !heads.is_empty() {
            let (me, job) = (self.me.clone(), job.clone());
            let task = move || {
                if let Some(g) = me.upgrade() {
                    g.tell_all(&job, &heads);
                }
            };
            self.poller.spawn(Box::new(task));
        }
        self.run_lost(job, host);
    }

    /// All that is known of hosts, for those at the top of what was below one that is lost, and those below them.
    fn tell_all(&self, job: &Arc<Job>, to: &[ProcUid]) {
        let all = job.hosts();
        let known = all.iter().filter(|h| h.lost().is_none() && super::lock_state(h).joined).filter_map(|h| h.entry()).collect();
        let lost = all.iter().filter_map(|h| Some((h.id, h.lost()?))).collect();
        let (known, lost) = (Word::Hosts { hosts: known }, Word::HostsLost { hosts: lost });
        for host in to {
            self.say_next(job, *host, &known);
            self.say_next(job, *host, &lost);
        }
    }
}
