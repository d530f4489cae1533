//! Which hosts a detector declares lost, and when; on simulated time, over a simulated network.

mod members;

use std::time::{Duration, Instant};

use members::{CLIENT, Fault, Member, Network, Span, Verdict, World, about, uid};
use proptest::prelude::*;
use runtime::membership::detector::{Action, Detector, LinkEnd, Role, Settings};

const LOSS: Duration = Duration::from_secs(3);
const RECONNECT: Duration = Duration::from_secs(10);
const ENDS: [LinkEnd; 5] = [LinkEnd::Exited, LinkEnd::Killed, LinkEnd::Reset, LinkEnd::Refused, LinkEnd::Ended];
const BEAT: Duration = Duration::from_millis(75);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn detector(role: Role) -> (Detector, Instant) {
    (Detector::new(Settings { loss: LOSS, reconnect: RECONNECT, role }), Instant::now())
}

/// Ticks at the requested times until an action is neither a ping, a probe nor a suspicion. Returns the time and the action.
fn until_verdict(d: &mut Detector, start: Instant, from: Duration, end: Duration) -> Option<(Duration, Action)> {
    let mut at = from;
    while at <= end {
        let verdict = d.tick(start + at).into_iter().find(|a| !matches!(a, Action::Ping(_) | Action::Probe { .. } | Action::Suspect(_)));
        if let Some(action) = verdict {
            return Some((at, action));
        }
        at += d.next(start + at)?.max(ms(1));
    }
    None
}

fn lost(host: Member, why: &str) -> Action {
    Action::Lost { host: uid(host), why: why.to_owned(), is_end_known: why.starts_with("agent") }
}

#[test]
fn detector_without_hosts_does_nothing() {
    let (mut d, start) = detector(Role::Client);
    assert_eq!(d.next(start), None);
    assert_eq!(d.tick(start), []);
    d.watch(uid(1), start);
    assert_eq!(d.next(start), Some(BEAT));
    d.forget(uid(1));
    assert_eq!(d.next(start), None);
}

#[test]
fn only_silent_hosts_are_pinged() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.watch(uid(2), start);
    for n in 1..40 {
        d.on_heartbeat(uid(1), start + n * BEAT);
        if n % 3 == 0 {
            assert_eq!(d.tick(start + n * BEAT), [Action::Ping(uid(2))]);
            d.on_heartbeat(uid(2), start + n * BEAT);
        } else {
            assert_eq!(d.tick(start + n * BEAT), []);
        }
    }
}

#[test]
fn silent_host_without_witness_is_lost_later() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    assert_eq!(until_verdict(&mut d, start, BEAT, LOSS), Some((36 * BEAT, lost(1, "silent for 2.7s"))));
    assert_eq!(d.next(start + LOSS), None);
}

#[test]
fn end_reported_by_the_kernel_counts_at_once() {
    for (end, why) in [(LinkEnd::Exited, "agent exited"), (LinkEnd::Killed, "agent killed")] {
        let (mut d, start) = detector(Role::Agent);
        d.watch(uid(1), start);
        d.on_heartbeat(uid(1), start + BEAT);
        d.link_down(uid(1), end, start + BEAT);
        // A heartbeat that was under way does not make the host alive again.
        d.on_heartbeat(uid(1), start + BEAT);
        assert_eq!(d.next(start + BEAT), Some(Duration::ZERO));
        assert_eq!(d.tick(start + BEAT), [Action::Suspect(uid(1)), Action::Lost { host: uid(1), why: why.to_owned(), is_end_known: true }]);
    }
}

#[test]
fn orderly_end_proves_nothing_before_a_refusal() {
    let (mut d, start) = detector(Role::Agent);
    d.watch(uid(1), start);
    d.on_heartbeat(uid(1), start);
    assert!(!d.link_down(uid(1), LinkEnd::Ended, start + ms(1)));
    assert_eq!(d.tick(start + ms(1)), [Action::Suspect(uid(1))]);
    // A dial that fails in another way does not change that.
    assert!(!d.link_down(uid(1), LinkEnd::Cut, start + ms(2)));
    assert!(d.link_down(uid(1), LinkEnd::Refused, start + ms(3)));
    assert_eq!(d.tick(start + ms(3)), [Action::Lost { host: uid(1), why: "agent killed".to_owned(), is_end_known: true }]);
}

#[test]
fn heartbeat_after_an_end_cancels_its_refusal() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.link_down(uid(1), LinkEnd::Ended, start + ms(1));
    d.on_heartbeat(uid(1), start + ms(2));
    assert!(!d.link_down(uid(1), LinkEnd::Refused, start + ms(3)));
    assert_eq!(until_verdict(&mut d, start, ms(3), LOSS), Some((ms(3) + 27 * BEAT, lost(1, "agent killed"))));
}

#[test]
fn orderly_end_without_a_refusal_is_silence() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.link_down(uid(1), LinkEnd::Ended, start);
    assert_eq!(until_verdict(&mut d, start, ms(0), LOSS), Some((36 * BEAT, lost(1, "silent for 2.7s"))));
}

#[test]
fn reset_is_a_suspicion_that_a_heartbeat_ends() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.watch(uid(2), start);
    d.on_heartbeat(uid(2), start);
    d.link_down(uid(1), LinkEnd::Reset, start + ms(10));
    assert_eq!(d.tick(start + ms(10)), [Action::Suspect(uid(1)), Action::Probe { via: uid(2), about: uid(1) }]);
    d.on_heartbeat(uid(1), start + ms(11));
    assert_eq!(d.tick(start + ms(11)), [Action::Recovered(uid(1))]);
    // A suspicion that has ended before it was reported is not reported.
    d.link_down(uid(1), LinkEnd::Reset, start + ms(12));
    d.on_heartbeat(uid(1), start + ms(12));
    assert_eq!(d.tick(start + ms(12)), []);
}

#[test]
fn refusing_port_without_witness_is_lost_later() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    for cause in [LinkEnd::Reset, LinkEnd::Refused, LinkEnd::Cut] {
        d.link_down(uid(1), cause, start);
    }
    assert_eq!(until_verdict(&mut d, start, ms(0), LOSS), Some((27 * BEAT, lost(1, "agent killed"))));
}

#[test]
fn refusing_port_and_silent_witness_lose_the_host() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.watch(uid(2), start);
    d.link_down(uid(1), LinkEnd::Refused, start);
    let mut at = Duration::ZERO;
    let verdict = loop {
        let now = start + at;
        d.on_heartbeat(uid(2), now);
        let actions = d.tick(now);
        if actions.contains(&Action::Probe { via: uid(2), about: uid(1) }) {
            d.on_probe_answer(uid(1), uid(2), Some(at), now);
        }
        match actions.into_iter().find(|a| matches!(a, Action::Lost { .. })) {
            Some(action) => break action,
            None => at += BEAT,
        }
    };
    assert_eq!((at, verdict), (16 * BEAT, lost(1, "agent killed")));
}

#[test]
fn probed_member_pings_an_unknown_host_temporarily() {
    let (mut d, start) = detector(Role::Agent);
    d.watch(uid(1), start);
    assert_eq!(d.on_probe(uid(2), start + ms(100)), None);
    d.on_heartbeat(uid(1), start + ms(200));
    assert!(d.tick(start + ms(200)).contains(&Action::Ping(uid(2))));
    d.on_heartbeat(uid(2), start + ms(201));
    assert_eq!(d.on_probe(uid(2), start + ms(301)), Some(ms(100)));
    for n in 5..60 {
        d.on_heartbeat(uid(1), start + n * BEAT);
        // This member watches the host on behalf of another one: it reports nothing about the host.
        assert!(d.tick(start + n * BEAT).iter().all(|a| *a == Action::Ping(uid(2)) && n < 20));
    }
    assert_eq!(d.on_probe(uid(1), start + 60 * BEAT), Some(BEAT));
}

#[test]
fn late_ticks_accuse_no_host() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.on_heartbeat(uid(1), start);
    assert_eq!(d.tick(start + BEAT), []);
    let stall = ms(60_000);
    assert_eq!(d.tick(start + BEAT + stall), [Action::Ping(uid(1))]);
    // All deadlines have moved by the stall, minus the beat that was due in it.
    assert_eq!(until_verdict(&mut d, start, 2 * BEAT + stall, 2 * stall), Some((stall + 35 * BEAT, lost(1, "silent for 2.7s"))));
}

#[test]
fn failed_dials_between_two_ticks_are_no_lateness() {
    let (mut d, start) = detector(Role::Client);
    d.watch(uid(1), start);
    d.on_heartbeat(uid(1), start);
    // The caller ticks once a beat, whatever happens in between, and a little late. A dial fails after each tick.
    let verdict = (1..80).find_map(|n| {
        let at = n * (BEAT + ms(2));
        let verdict = d.tick(start + at).into_iter().find(|a| matches!(a, Action::Lost { .. }));
        d.link_down(uid(1), LinkEnd::Cut, start + at + ms(1));
        verdict.map(|v| (at, v))
    });
    assert_eq!(verdict, Some((36 * (BEAT + ms(2)), lost(1, "silent for 2.7s"))));
}

#[test]
fn isolated_agent_reports_no_loss() {
    let cut = Span::new(ms(5000), ms(60_000));
    let faults = vec![Fault::Off { member: 2, deaf: true, mute: true, span: cut }];
    let mut world = World::new(4, LOSS, RECONNECT, calm(), faults, 7);
    world.run_until(ms(64_000));
    assert!(world.is_isolated(2) && !world.is_isolated(1) && !world.is_isolated(0));
    let verdicts: Vec<(Member, Member)> = world.verdicts().map(|s| (s.by, about(&s.action))).collect();
    assert_eq!(verdicts.len(), 3);
    assert!([(0, 2), (1, 2), (3, 2)].iter().all(|v| verdicts.contains(v)));
}

#[test]
fn isolated_client_waits_for_the_agents_lease() {
    for (members, len, lost) in [(4, 9500, 0), (4, 60_000, 3), (2, 60_000, 1)] {
        let off = Fault::Off { member: 0, deaf: true, mute: true, span: Span::new(ms(5000), ms(len)) };
        let mut world = World::new(members, LOSS, RECONNECT, calm(), vec![off], 7);
        world.run_until(ms(5000) + if members == 2 { LOSS } else { RECONNECT });
        assert_eq!(world.verdicts().filter(|s| s.by == 0).count(), if members == 2 { 1 } else { 0 });
        world.run_until(ms(5000) + RECONNECT + ms(1200));
        assert_eq!(world.verdicts().filter(|s| s.by == 0).count(), lost);
    }
}

#[test]
fn broken_link_is_lost_after_the_reconnect_timeout() {
    for one_way in [false, true] {
        let cut = Span::new(ms(5000), ms(600_000));
        let fault = if one_way { Fault::OneWay(1, 2, cut) } else { Fault::TwoWays(1, 2, cut) };
        let mut world = World::new(4, LOSS, RECONNECT, calm(), vec![fault], 7);
        world.run_until(ms(30_000));
        let at = |by, of| world.verdicts().find(|s| s.by == by && about(&s.action) == of).map(|s| (s.at, s.action.clone()));
        let (when, action) = at(2, 1).expect("a verdict");
        assert!(when > cut.from + RECONNECT && when < cut.from + RECONNECT + ms(1500), "{when:?}");
        assert_eq!(action, Action::LinkLost { host: uid(1), why: "silent for 10.9s while other hosts hear it".to_owned() });
        // The other end loses its link when the first one has closed the link. Here it is refused without an answer, so it sees silence
        // again.
        assert!(matches!(at(1, 2), Some((_, Action::LinkLost { .. }))), "{:?}", at(1, 2));
        assert_eq!(world.verdicts().count(), 2);
    }
}

fn calm() -> Network {
    Network { latency: ms(1), jitter: ms(5), drops: 0 }
}

fn network() -> impl Strategy<Value = Network> {
    (0_u64..20, 0_u64..150, 0_u64..30).prop_map(|(latency, jitter, drops)| Network { latency: ms(latency), jitter: ms(jitter), drops })
}

/// A disturbance, beginning at `at`, that is too short for any host to be declared lost.
fn harmless(members: usize, at: Duration) -> impl Strategy<Value = Vec<Fault>> {
    let span = move |len: u64| Span::new(at, ms(len));
    (0..8, 0..members, 1..members, 0_u64..1000).prop_map(move |(kind, a, step, n)| {
        let b = (a + step) % members;
        let flaps = (0..8).map(|i| Span::new(at + ms(1000 * i), ms(n * 6 / 10)));
        match kind {
            0 => vec![Fault::Starved(a, span(n * 15 / 10))],
            1 => (0..members).map(|m| Fault::Starved(m, span(n * 15 / 10))).collect(),
            2 => vec![Fault::TwoWays(a, b, span(2 * n))],
            3 => vec![Fault::Off { member: a, deaf: n % 3 != 0, mute: n % 3 != 1, span: span(2 * n) }],
            // A client that is cut off does not lose its hosts either, if the cut is not longer than agents wait for it.
            7 if members > 2 => vec![Fault::Off { member: 0, deaf: true, mute: n % 2 == 0, span: span(9 * n + 500) }],
            4 => flaps.map(|span| Fault::TwoWays(a, b, span)).collect(),
            // Other members receive the heartbeats of both ends.
            5 if members > 2 => vec![Fault::TwoWays(a, b, span(9 * n + 900))],
            6 if members > 2 => vec![Fault::OneWay(a, b, span(9 * n + 900))],
            _ => vec![],
        }
    })
}

fn disturbed(rounds: u64) -> impl Strategy<Value = (usize, Vec<Fault>)> {
    (2_usize..8).prop_flat_map(move |members| {
        let all: Vec<_> = (0..rounds).map(|n| harmless(members, ms(3000 + 14_000 * n))).collect();
        (Just(members), all.prop_map(|all| all.concat()))
    })
}

/// The last action of each member about each other member.
fn last_verdicts(world: &World) -> Vec<&Verdict> {
    let mut last: std::collections::BTreeMap<(Member, Member), &Verdict> = Default::default();
    for verdict in &world.reported {
        last.insert((verdict.by, about(&verdict.action)), verdict);
    }
    last.into_values().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With delays, losses, starvation of up to 1.5 s, cuts of up to 2 s, and longer cuts that third hosts can see around, no host is
    /// declared lost.
    #[test]
    fn healthy_hosts_are_never_lost((members, faults) in disturbed(4), network in network(), seed in any::<u64>()) {
        let mut world = World::new(members, LOSS, RECONNECT, network, faults, seed);
        world.run_until(ms(60_000));
        prop_assert_eq!(world.verdicts().map(|s| format!("{s:?}")).collect::<Vec<_>>(), Vec::<String>::new());
        let over = |s: &&Verdict| matches!(s.action, Action::Recovered(_)) || about(&s.action) == CLIENT;
        let open: Vec<_> = last_verdicts(&world).into_iter().filter(|s| !over(s)).collect();
        // A starved member may have just begun another suspicion, by chance with lost messages. Such a suspicion is never old.
        prop_assert!(open.iter().all(|s| s.at > ms(60_000) - 24 * BEAT), "{open:?}");
    }

    /// A host that is cut off is declared lost by all members that still receive heartbeats, within the bound plus the time for which they
    /// were starved. No other host is declared lost.
    #[test]
    fn every_loss_is_known_in_time(
        members in 2_usize..8, network in network(), seed in any::<u64>(), at in 3000_u64..5000, victim in 0_usize..8,
        starved in 0_usize..8, stall in 0_u64..1500, begin in 2000_u64..8000, scale in 1_u32..4,
    ) {
        let (victim, starved) = (1 + victim % (members - 1), starved % members);
        let mut faults = vec![Fault::Off { member: victim, deaf: true, mute: true, span: Span::new(ms(at), Duration::MAX) }];
        if starved != victim {
            faults.push(Fault::Starved(starved, Span::new(ms(begin), ms(stall))));
        }
        let loss = scale * LOSS;
        let mut world = World::new(members, loss, RECONNECT, network, faults, seed);
        world.run_until(ms(at) + 3 * loss);
        let notified: Vec<_> = world.verdicts().collect();
        prop_assert!(notified.iter().all(|s| about(&s.action) == victim && matches!(s.action, Action::Lost { .. })), "{notified:?}");
        // With two members, the remaining one is the client.
        let mut reporters: Vec<Member> = notified.iter().map(|s| s.by).collect();
        reporters.sort_unstable();
        prop_assert_eq!(reporters, (0..members).filter(|m| *m != victim).collect::<Vec<_>>());
        for s in notified {
            // Messages under way at the cut, and a third host that was starved, may make the victim look alive for longer.
            prop_assert!(s.at <= ms(at) + loss + ms(stall), "{s:?}");
            prop_assert!(s.at >= s.last_heartbeat + loss / 40 * 36, "{s:?}");
        }
    }

    /// After any faults, also several at once, each member has a verdict about each other one.
    #[test]
    fn every_host_ends_in_a_definite_state(
        members in 2_usize..7, network in network(), seed in any::<u64>(),
        raw in prop::collection::vec((0_usize..6, 0_usize..7, 1_usize..7, 2000_u64..20_000, 0_u64..20_000, any::<bool>()), 0..8),
    ) {
        let faults = raw.into_iter().map(|(kind, a, step, from, len, lasts)| {
            let (a, from) = (a % members, ms(from));
            let b = (a + 1 + step % (members - 1)) % members;
            let span = Span::new(from, if lasts { Duration::MAX } else { ms(len) });
            match kind {
                0 => Fault::OneWay(a, b, span),
                1 => Fault::TwoWays(a, b, span),
                2 => Fault::Off { member: a, deaf: true, mute: len % 2 == 0, span },
                3 => Fault::Off { member: a, deaf: len % 2 == 0, mute: true, span },
                4 => Fault::Starved(a, Span::new(from, ms(len % 1500))),
                _ => Fault::Dies(a, ENDS[len as usize % ENDS.len()], from),
            }
        });
        let faults: Vec<Fault> = faults.collect();
        let dead: Vec<Member> = faults.iter().filter_map(|f| if let Fault::Dies(m, ..) = f { Some(*m) } else { None }).collect();
        let mut world = World::new(members, LOSS, RECONNECT, network, faults, seed);
        let end = ms(90_000);
        world.run_until(end);
        for verdict in last_verdicts(&world).into_iter().filter(|s| !dead.contains(&s.by) && !world.is_isolated(s.by)) {
            let settled = !matches!(verdict.action, Action::Suspect(_)) || verdict.at > end - RECONNECT - LOSS;
            prop_assert!(settled, "{verdict:?}");
        }
        for verdict in world.verdicts() {
            // No host is declared lost without a silence before, unless the kernel has reported the end of its process.
            let notified = matches!(&verdict.action, Action::Lost { why, .. } if why.starts_with("agent"));
            prop_assert!(notified || verdict.at >= verdict.last_heartbeat + 36 * BEAT, "{verdict:?}");
        }
    }
}

/// The times of 10,000 cuts; `--nocapture` prints them.
#[test]
fn loss_is_found_within_the_limit() {
    let mut times = vec![];
    for seed in 1..=10_000_u64 {
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let members = 2 + (random >> 20) as usize % 5;
        let victim = 1 + (random >> 30) as usize % (members - 1);
        let at = ms(1500 + (random >> 40) % 600);
        let network = Network { latency: ms(1), jitter: ms(100), drops: 10 };
        let off = Fault::Off { member: victim, deaf: true, mute: true, span: Span::new(at, Duration::MAX) };
        let mut world = World::new(members, LOSS, RECONNECT, network, vec![off], random);
        world.run_until(at + LOSS + ms(500));
        for s in world.verdicts() {
            assert_eq!(about(&s.action), victim);
            times.push(s.at - at);
        }
    }
    times.sort_unstable();
    let q = |q: f64| times[(q * (times.len() - 1) as f64) as usize];
    println!("{} verdicts on 10000 cuts: p50 {:?}, p99 {:?}, max {:?}", times.len(), q(0.5), q(0.99), q(1.0));
    assert!(q(0.99) <= LOSS);
}
