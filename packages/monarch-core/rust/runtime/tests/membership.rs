//! The membership of hosts: the transition table of a host, leases, and random events against a small model.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use runtime::membership::host_table::{self, transition};
use runtime::membership::lease::Lease;
use runtime::membership::relays::{Orphans, Relays};
use runtime::membership::{Action, Event, HostEvent, HostState, LinkEnd, Membership, Role, Settings};
use wire::ProcUid;

const CLIENT: ProcUid = ProcUid(1);
const OWN: ProcUid = ProcUid(99);
const LOSS: Duration = Duration::from_secs(3);
const BEAT: Duration = Duration::from_millis(75);
const LEASE: Duration = Duration::from_secs(8);
/// An agent ends the work of a silent client a fifth of so short a lease before the lease is over.
const WORK_LIMIT: Duration = Duration::from_millis(6400);
const ENDS: [LinkEnd; 6] = [LinkEnd::Exited, LinkEnd::Ended, LinkEnd::Killed, LinkEnd::Reset, LinkEnd::Refused, LinkEnd::Cut];

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn member(role: Role, start: Instant) -> Membership {
    let own = if role == Role::Client { CLIENT } else { OWN };
    let mut member = Membership::new(CLIENT, own, Settings { loss: LOSS, reconnect: ms(10_000), role }, LEASE, start);
    if role == Role::Agent {
        member.on(Event::Joined { host: CLIENT }, start);
        member.on(Event::Watched { host: CLIENT }, start);
    }
    member
}

fn lost(host: ProcUid, why: &str) -> Event {
    Event::Lost { host, why: why.to_owned(), is_end_known: false, notify: true }
}

fn ended(host: ProcUid, why: &str) -> Event {
    Event::Lost { host, why: why.to_owned(), is_end_known: true, notify: true }
}

fn tick() -> Event {
    Event::Tick { remark: None }
}

// ---- the transition table

/// `MONARCH_WRITE_TABLES=1 cargo test -p monarch-runtime --test membership` writes the table anew.
#[test]
fn transition_table_of_the_page_is_current() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../docs/invariants.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (first, last) =
        ("<!-- Generated from the transitions of hosts by the test `membership` of the runtime. -->\n", "<!-- End of the transitions. -->");
    let (before, rest) = text.split_once(first).unwrap();
    let (table, after) = rest.split_once(last).unwrap();
    if std::env::var_os("MONARCH_WRITE_TABLES").is_some() {
        std::fs::write(&page, [before, first, &host_table::table(), last, after].concat()).unwrap();
    } else {
        assert_eq!(table, host_table::table(), "docs/invariants.md is stale: set MONARCH_WRITE_TABLES=1 and run this test");
    }
}

#[test]
fn ended_host_never_changes_its_state() {
    for state in HostState::ALL.into_iter().filter(|state| state.is_ended()) {
        assert!(HostEvent::ALL.iter().all(|event| transition(state, *event) == Some(state)));
    }
}

#[test]
fn every_host_that_has_not_ended_can_end() {
    for state in HostState::ALL {
        for event in [HostEvent::Ended, HostEvent::Lost, HostEvent::LinkLost] {
            assert!(transition(state, event).is_some_and(HostState::is_ended), "{state:?}, {event:?}");
        }
    }
}

#[test]
fn only_joined_hosts_are_suspected() {
    for state in HostState::ALL.into_iter().filter(|state| !state.is_joined() && !state.is_ended()) {
        assert_eq!(transition(state, HostEvent::Suspected), None, "{state:?}");
    }
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "cannot happen"))]
fn impossible_event_changes_nothing_and_is_recorded() {
    let start = Instant::now();
    let mut member = member(Role::Client, start);
    let actions = member.on(Event::Watched { host: ProcUid(2) }, start);
    assert!(matches!(&actions[..], [Action::Unexpected { host: ProcUid(2), state: HostState::Announced, .. }]), "{actions:?}");
    assert_eq!(member.next(start), None, "the host is not watched");
}

// ---- the end of a host

#[test]
fn client_notifies_the_lost_host_and_the_others() {
    let (start, host, why) = (Instant::now(), ProcUid(2), || "silent".to_owned());
    let mut member = member(Role::Client, start);
    member.on(Event::Joined { host }, start);
    let expected = [
        Action::NotifyHost { host, why: why() },
        Action::EndSession { host, reset: false },
        Action::Record { host, left: false, why: why() },
        Action::EndProcesses { host, had_joined: true },
        Action::NotifyOthers { host, why: why() },
    ];
    assert_eq!(member.on(lost(host, "silent"), start), expected);
    assert_eq!(member.on(lost(host, "killed"), start), [], "the end is acted on once");
    assert_eq!(member.end_reason(host), Some("silent"));
}

#[test]
fn host_with_an_expected_exit_has_left() {
    let (start, host) = (Instant::now(), ProcUid(2));
    let mut member = member(Role::Client, start);
    for event in [Event::ExitExpected { host }, Event::Joined { host }, ended(host, "agent exited")] {
        member.on(event, start);
    }
    assert_eq!((member.state(host), member.unknown_end(host)), (HostState::Left, None));
}

#[test]
fn host_without_a_known_end_has_not_left() {
    let (start, host) = (Instant::now(), ProcUid(2));
    let unreached = |events: &[Event]| {
        let mut member = member(Role::Client, start);
        events.iter().for_each(|event| drop(member.on(event.clone(), start)));
        assert!(member.state(host).is_ended() && member.state(host) != HostState::Left);
        member.unknown_end(host).map(str::to_owned)
    };
    let (joined, dismissed) = (Event::Joined { host }, Event::ExitExpected { host });
    let link_lost = Event::LinkLost { host, why: "no route".to_owned() };
    let not_joined = "it did not join: no answer";
    assert_eq!(unreached(&[dismissed.clone(), lost(host, not_joined)]).as_deref(), Some(not_joined));
    assert_eq!(unreached(&[joined.clone(), dismissed.clone(), lost(host, "refused")]).as_deref(), Some("refused"));
    assert_eq!(unreached(&[joined.clone(), dismissed, link_lost]).as_deref(), Some("no route"));
    assert_eq!(unreached(&[joined.clone(), lost(host, "silent")]).as_deref(), Some("silent"));
    assert_eq!(unreached(&[joined, ended(host, "agent killed")]), None, "an unexpected end is a loss, and is known");
}

#[test]
fn silent_leaving_host_has_no_known_end() {
    let (start, host) = (Instant::now(), ProcUid(2));
    for (cause, is_known) in [
        (None, false),
        (Some(LinkEnd::Refused), true),
        (Some(LinkEnd::Reset), false),
        (Some(LinkEnd::Exited), true),
        (Some(LinkEnd::Killed), true),
    ] {
        let mut member = member(Role::Client, start);
        for event in [Event::Joined { host }, Event::Watched { host }, Event::ExitExpected { host }] {
            member.on(event, start);
        }
        cause.into_iter().for_each(|cause| drop(member.on(Event::LinkDown { host, cause }, start)));
        let mut now = start;
        while let Some(wait) = member.next(now) {
            now += wait.max(ms(1));
            member.on(tick(), now);
        }
        assert_eq!((member.state(host) == HostState::Left, member.unknown_end(host).is_none()), (is_known, is_known), "{cause:?}");
    }
}

/// The host has ended the work of a client that it has received no heartbeat of by then, so to wait longer saves nothing.
#[test]
fn client_waits_for_a_link_until_the_lease() {
    let (start, host, other) = (Instant::now(), ProcUid(2), ProcUid(3));
    let lost_after = |lease: Duration, reconnect: Duration| {
        let mut member = Membership::new(CLIENT, CLIENT, Settings { loss: LOSS, reconnect, role: Role::Client }, lease, start);
        for host in [host, other] {
            member.on(Event::Joined { host }, start);
            member.on(Event::Watched { host }, start);
            member.on(Event::Heartbeat { host }, start);
        }
        let mut now = start;
        while !member.state(host).is_ended() {
            now += member.next(now).unwrap().max(ms(1));
            member.on(Event::Heartbeat { host: other }, now);
            for action in member.on(tick(), now) {
                if let Action::Probe { via, about } = action {
                    member.on(Event::ProbeAnswered { about, via, age: Some(ms(0)) }, now);
                }
            }
        }
        assert_eq!(member.state(host), HostState::LinkLost);
        now - start
    };
    let suspicion = 12 * BEAT;
    for (lease, reconnect, expected) in [
        (LEASE, ms(10_000), WORK_LIMIT),
        (LEASE, ms(2_000), ms(2_000) + suspicion),
        (Duration::ZERO, ms(10_000), ms(10_000) + suspicion),
        (ms(10_000), ms(10_000), ms(8_000)),
    ] {
        let after = lost_after(lease, reconnect);
        assert!(after >= expected && after < expected + 2 * BEAT, "{after:?}, {expected:?}");
    }
}

#[test]
fn agent_resets_its_session_and_notifies_no_host() {
    let (start, host) = (Instant::now(), ProcUid(2));
    let mut member = member(Role::Agent, start);
    member.on(Event::Joined { host }, start);
    let actions = member.on(Event::LinkLost { host, why: "cut".to_owned() }, start);
    assert_eq!(actions[0], Action::EndSession { host, reset: true });
    assert!(!actions.iter().any(|a| matches!(a, Action::NotifyHost { .. } | Action::NotifyOthers { .. })), "{actions:?}");
    assert_eq!(member.state(host), HostState::LinkLost);
}

#[test]
fn agent_that_is_declared_lost_ends_its_job() {
    let start = Instant::now();
    let mut member = member(Role::Agent, start);
    assert_eq!(member.on(lost(OWN, "silent"), start), [Action::EndJob { why: "declared lost: silent".to_owned() }]);
}

/// A suspicion that ended and began again before the next tick stays one suspicion for the caller.
#[test]
fn suspicion_that_returns_before_the_tick_is_kept() {
    let (start, host) = (Instant::now(), ProcUid(2));
    let mut member = member(Role::Client, start);
    for event in [Event::Joined { host }, Event::Watched { host }, Event::LinkDown { host, cause: LinkEnd::Cut }] {
        member.on(event, start);
    }
    assert!(member.on(tick(), start).contains(&Action::Suspected { host }));
    member.on(Event::Heartbeat { host }, start + ms(10));
    member.on(Event::LinkDown { host, cause: LinkEnd::Cut }, start + ms(20));
    member.on(tick(), start + ms(30));
    assert_eq!(member.state(host), HostState::Suspected);
}

// ---- the lease

#[test]
fn lease_ends_after_the_last_heartbeat() {
    let start = Instant::now();
    let mut lease = Lease::new(LEASE, start);
    assert_eq!(lease.end(), Some(start + WORK_LIMIT));
    lease.renew(start + ms(500));
    lease.renew(start + ms(100));
    assert_eq!(lease.end(), Some(start + ms(500) + WORK_LIMIT), "an earlier heartbeat changes nothing");
    assert!(!lease.is_over(start + WORK_LIMIT) && lease.is_over(start + ms(500) + WORK_LIMIT));
}

#[test]
fn long_lease_leaves_time_for_the_clean_up() {
    let start = Instant::now();
    assert_eq!(Lease::new(ms(60_000), start).end(), Some(start + ms(58_000)));
}

#[test]
fn lease_without_a_length_never_ends() {
    let start = Instant::now();
    let lease = Lease::new(Duration::ZERO, start);
    assert!(lease.end().is_none() && !lease.is_over(start + Duration::from_secs(1_000_000)));
}

// ---- relays

/// The client has joined host 2, host 2 has joined host 3, and host 3 has joined host 4.
fn relays_of_a_client() -> Relays {
    let mut relays = Relays::new(Role::Client, CLIENT);
    relays.on_joined(CLIENT, ProcUid(2));
    relays.on_relayed_join(ProcUid(3), ProcUid(2), ProcUid(2));
    relays.on_relayed_join(ProcUid(4), ProcUid(2), ProcUid(3));
    relays
}

#[test]
fn route_leads_through_a_host_with_a_connection() {
    let mut relays = relays_of_a_client();
    assert_eq!([2, 3, 4].map(|host| relays.next_hop(ProcUid(host))), [Some(ProcUid(2)); 3]);
    assert!(relays.on_direct_connection(ProcUid(4)) && !relays.on_direct_connection(ProcUid(4)));
    assert_eq!(relays.next_hop(ProcUid(4)), Some(ProcUid(4)));
}

#[test]
fn all_hosts_behind_a_lost_relay_need_connections() {
    let mut relays = relays_of_a_client();
    let mut orphans = relays.on_end(ProcUid(2));
    orphans.relayed.sort();
    assert_eq!(orphans, Orphans { relayed: vec![ProcUid(3), ProcUid(4)], joined: vec![ProcUid(3)] });
}

#[test]
fn agent_forgets_the_routes_through_a_lost_child() {
    let (mut relays, start) = (Relays::new(Role::Agent, CLIENT), Instant::now());
    relays.on_relay(ProcUid(9));
    relays.on_joined(OWN, ProcUid(2));
    relays.on_heartbeat(ProcUid(3), ProcUid(2), start + ms(5));
    relays.on_heartbeat(ProcUid(3), ProcUid(2), start);
    assert_eq!(relays.heartbeats(), [(ProcUid(3), start + ms(5))], "an earlier heartbeat changes nothing");
    assert_eq!([1, 2, 3].map(|host| relays.next_hop(ProcUid(host))), [Some(ProcUid(9)), Some(ProcUid(2)), Some(ProcUid(2))]);
    assert_eq!(relays.on_end(ProcUid(2)), Orphans::default());
    assert_eq!([1, 2, 3].map(|host| relays.next_hop(ProcUid(host))), [Some(ProcUid(9)), None, None]);
}

// ---- random events against a model

/// The model of one host: flags that only become true, but for the suspicion.
#[derive(Clone, Default)]
struct Host {
    joined: bool,
    exit_expected: bool,
    watched: bool,
    suspected: bool,
    ended: Option<HostState>,
    /// The time since which the detector may count silence, and whether connections have ever ended: their end may prove the host's end.
    heartbeat: Duration,
    link_down: bool,
    /// The end of the connections, or a port that refuses, has proved the end of the agent.
    end_proved: bool,
}

struct World {
    role: Role,
    start: Instant,
    now: Duration,
    member: Membership,
    hosts: Vec<Host>,
    client_heartbeat: Duration,
    over: bool,
}

impl World {
    fn new(role: Role) -> World {
        // Indirect heartbeats may be older than the job.
        let (start, now) = (Instant::now(), ms(10_000));
        let mut hosts = vec![Host::default(); 6];
        if role == Role::Agent {
            (hosts[1].joined, hosts[1].watched, hosts[1].heartbeat) = (true, true, now);
        }
        World { role, start, now, member: member(role, start + now), hosts, client_heartbeat: now, over: false }
    }

    fn on(&mut self, event: Event) {
        if let Event::Heartbeat { host } | Event::IndirectHeartbeat { host, .. } | Event::Reconnected { host } | Event::Watched { host } =
            event
        {
            self.host(host).suspected = false;
        }
        let actions = self.member.on(event.clone(), self.start + self.now);
        self.check(&event, &actions);
    }

    /// Ticks at the requested times until the time has passed.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(wait) = self.member.next(self.start + self.now).filter(|wait| self.now + *wait <= end) {
            self.now += wait.max(ms(1));
            self.on(tick());
        }
        self.now = self.now.max(end);
    }

    fn host(&mut self, id: ProcUid) -> &mut Host {
        &mut self.hosts[id.0 as usize]
    }

    /// Compares the actions of an event with the model, and notes them there.
    fn check(&mut self, event: &Event, actions: &[Action]) {
        assert!(!self.over || actions.is_empty(), "after the end of the job: {actions:?}");
        let mut ending = BTreeSet::new();
        for action in actions {
            match action.clone() {
                Action::Ping { host } => assert!(self.host(host).joined && self.host(host).ended.is_none(), "{host:?} is no member"),
                Action::Probe { via, about } => {
                    assert!(via != about && self.host(via).watched && self.host(about).watched, "{action:?}");
                }
                Action::Suspected { host } => {
                    let h = self.host(host);
                    assert!(h.watched && h.ended.is_none() && !h.suspected, "{host:?} is suspected twice, or not watched");
                    h.suspected = true;
                }
                Action::AgentEnded { host } => assert!(self.host(host).watched, "{host:?} is not watched"),
                Action::EndSession { host, reset } => {
                    assert_eq!(reset, self.role == Role::Agent);
                    self.end(event, host);
                    ending.insert(host);
                }
                Action::NotifyHost { host, .. } => assert!(self.host(host).ended.is_none() && !self.host(host).exit_expected),
                Action::Record { host, left, .. } => {
                    assert!(ending.contains(&host), "{host:?} does not end");
                    assert_eq!(left, self.host(host).ended == Some(HostState::Left));
                }
                Action::EndProcesses { host, had_joined } => {
                    assert!(ending.contains(&host) && (self.role, host) != (Role::Agent, CLIENT));
                    assert_eq!(had_joined, self.host(host).joined);
                }
                Action::NotifyOthers { host, .. } => assert!(self.role == Role::Client && ending.contains(&host)),
                Action::EndJob { why } => self.end_job(event, &why, &ending),
                Action::Unexpected { .. } => panic!("{action:?} after {event:?}"),
            }
        }
        let due = self.role == Role::Agent && self.now >= self.client_heartbeat + WORK_LIMIT;
        if matches!(event, Event::Tick { .. }) && due && !self.over {
            assert!(actions.iter().any(|a| matches!(a, Action::EndJob { .. })), "the lease is over");
        }
        for (id, h) in self.hosts.iter().enumerate().skip(1) {
            let state = self.member.state(ProcUid(id as u64));
            match h.ended {
                Some(end) => assert_eq!(state, end, "host {id}"),
                None if self.over => assert_eq!(state, HostState::Lost),
                None => {
                    assert!(!state.is_ended(), "host {id} has ended without actions");
                    assert_eq!((state.is_joined(), state.is_leaving()), (h.joined, h.exit_expected), "host {id}");
                }
            }
        }
    }

    /// The end of a host: once, and by a tick only after a silence or the end of its connections.
    fn end(&mut self, event: &Event, host: ProcUid) {
        let (now, state) = (self.now, self.member.state(host));
        let h = self.host(host);
        assert!(h.ended.is_none(), "{host:?} ends twice");
        h.ended = Some(match event {
            Event::Lost { host: about, is_end_known: true, .. } if *about == host && h.exit_expected => HostState::Left,
            Event::Lost { host: about, .. } if *about == host => HostState::Lost,
            Event::LinkLost { host: about, .. } if *about == host => HostState::LinkLost,
            Event::Tick { .. } => {
                assert!(h.watched && (h.link_down || now >= h.heartbeat + 36 * BEAT), "{host:?} was not silent");
                assert!(state != HostState::Left || h.exit_expected && h.end_proved, "{host:?} may still run");
                state
            }
            _ => panic!("{host:?} ends by {event:?}"),
        });
        h.watched = false;
    }

    fn end_job(&mut self, event: &Event, why: &str, ending: &BTreeSet<ProcUid>) {
        assert_eq!(self.role, Role::Agent);
        match event {
            Event::Tick { .. } => assert!(self.now >= self.client_heartbeat + WORK_LIMIT, "the lease is not over"),
            Event::Lost { host, .. } => assert!(*host == OWN || ending.contains(&CLIENT)),
            Event::LinkLost { .. } => assert!(ending.contains(&CLIENT)),
            _ => panic!("{event:?} ends the job"),
        }
        assert_eq!(self.member.on(Event::JobEnded { why: why.to_owned() }, self.start + self.now), []);
        self.over = true;
    }

    /// One step: the event of this kind, as far as it can happen now.
    fn step(&mut self, kind: usize, id: u64, millis: u64) {
        let (host, now) = (ProcUid(id), self.now);
        // A process is no host of its own job; the client is a host of the job at an agent.
        if (self.role, host) == (Role::Client, CLIENT) {
            return self.pass(ms(millis));
        }
        let is_member = self.host(host).joined && self.host(host).ended.is_none();
        match kind {
            0 | 1 => self.pass(ms(millis)),
            2 | 3 => {
                if (self.role, host) == (Role::Agent, CLIENT) && !self.over {
                    (self.client_heartbeat, self.host(host).watched) = (now, self.host(host).ended.is_none());
                }
                let h = self.host(host);
                h.heartbeat = now;
                self.on(Event::Heartbeat { host });
            }
            4 => {
                self.host(host).joined |= self.host(host).ended.is_none();
                self.on(Event::Joined { host });
            }
            5 if self.host(host).joined => {
                let h = self.host(host);
                if is_member && !h.watched {
                    (h.watched, h.heartbeat) = (true, now);
                }
                self.on(Event::Watched { host });
            }
            6 => self.on(Event::JoinStarted { host }),
            7 => self.on(Event::JoinEnded { host }),
            8 => {
                let cause = ENDS[millis as usize % ENDS.len()];
                let h = self.host(host);
                h.end_proved |= matches!(cause, LinkEnd::Exited | LinkEnd::Killed | LinkEnd::Refused);
                h.link_down |= is_member;
                self.on(Event::LinkDown { host, cause });
            }
            9 if self.host(host).joined => self.on(Event::Reconnected { host }),
            10 => {
                self.host(host).exit_expected |= self.host(host).ended.is_none();
                self.on(Event::ExitExpected { host });
            }
            11 => self.on(Event::ProbeAnswered { about: host, via: ProcUid(1 + millis % 5), age: Some(ms(millis)) }),
            12 => {
                let age = self.member.on_probe(host, self.start + now);
                assert!(is_member || age.is_none(), "{host:?} is no member");
            }
            13 if host != CLIENT => {
                // The first heartbeat of a host may be older than the time since which it is watched.
                let h = self.host(host);
                h.heartbeat = h.heartbeat.min(now.saturating_sub(ms(millis)));
                self.on(Event::IndirectHeartbeat { host, age: ms(millis) });
            }
            14 if millis < 50 => self.on(lost(host, "refused")),
            14 if millis < 100 => self.on(ended(host, "goodbye")),
            15 if millis < 50 => self.on(Event::LinkLost { host, why: "no route".to_owned() }),
            16 if millis < 20 && self.role == Role::Agent => self.on(lost(OWN, "silent")),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_events_agree_with_the_model(
        is_client in any::<bool>(), steps in prop::collection::vec((0_usize..17, 1_u64..6, 0_u64..900), 1..250),
    ) {
        let mut world = World::new(if is_client { Role::Client } else { Role::Agent });
        steps.into_iter().for_each(|(kind, host, millis)| world.step(kind, host, millis));
        world.pass(ms(20_000));
        assert!(is_client || world.over, "the lease of a silent client ends the job");
    }
}
