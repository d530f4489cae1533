//! Casts, direct sends, slices, and ends of hosts and procs at every step, against a model that knows only which caller sent which message
//! to which proc.

mod casting;

use casting::{World, answer};
use proptest::prelude::*;
use runtime::cast::fan_out::FAN_OUT;
use wire::Status;
use wire::cast::CastMode;

#[derive(Clone, Debug)]
enum Step {
    Group { caller: usize, hosts: Vec<usize>, all: bool },
    Cast { caller: usize, group: usize, mode: CastMode },
    Direct { caller: usize, proc: usize },
    Forget { caller: usize, group: usize },
    Frames { picks: Vec<usize> },
    Work { pick: usize },
    Duplicate { pick: usize },
    KillHost { host: usize, keep: usize },
    KillProc { pick: usize },
    CutLink { hosts: (usize, usize), keep: usize },
    NoticeLink { pick: usize },
    NoticeEnd { pick: usize },
    Wait,
}

fn step(hosts: usize) -> impl Strategy<Value = Step> {
    let pick = || 0usize..1000;
    let mode = prop_oneof![Just(CastMode::Gather), Just(CastMode::FirstError), Just(CastMode::Taken)];
    let members = prop_oneof![
        Just((0..hosts).collect::<Vec<_>>()),
        Just((1..hosts).collect::<Vec<_>>()),
        proptest::sample::subsequence((0..hosts).collect::<Vec<_>>(), 1..=hosts),
        proptest::sample::subsequence((0..hosts).collect::<Vec<_>>(), 1..=hosts).prop_shuffle(),
    ];
    prop_oneof![
        2 => (0usize..2, members, any::<bool>()).prop_map(|(caller, hosts, all)| Step::Group { caller, hosts, all }),
        8 => (0usize..2, pick(), mode).prop_map(|(caller, group, mode)| Step::Cast { caller, group, mode }),
        4 => (0usize..2, pick()).prop_map(|(caller, proc)| Step::Direct { caller, proc }),
        1 => (0usize..2, pick()).prop_map(|(caller, group)| Step::Forget { caller, group }),
        24 => proptest::collection::vec(pick(), 1..6).prop_map(|picks| Step::Frames { picks }),
        8 => pick().prop_map(|pick| Step::Work { pick }),
        2 => pick().prop_map(|pick| Step::Duplicate { pick }),
        2 => (0..hosts, pick()).prop_map(|(host, keep)| Step::KillHost { host, keep }),
        1 => pick().prop_map(|pick| Step::KillProc { pick }),
        2 => ((0..hosts, 0..hosts), pick()).prop_map(|(hosts, keep)| Step::CutLink { hosts, keep }),
        4 => pick().prop_map(|pick| Step::NoticeLink { pick }),
        6 => pick().prop_map(|pick| Step::NoticeEnd { pick }),
        2 => Just(Step::Wait),
    ]
}

fn scenario() -> impl Strategy<Value = (Vec<usize>, u32, Vec<Step>)> {
    (2usize..14).prop_flat_map(|hosts| {
        let procs = proptest::collection::vec(1usize..4, hosts);
        (procs, 1u32..5, proptest::collection::vec(step(hosts), 1..120))
    })
}

fn storm() -> impl Strategy<Value = (Vec<usize>, u32, Vec<Step>, Vec<Step>)> {
    (4usize..16).prop_flat_map(|hosts| {
        let pick = || 0usize..1000;
        let step = || {
            prop_oneof![
                20 => proptest::collection::vec(pick(), 1..4).prop_map(|picks| Step::Frames { picks }),
                10 => pick().prop_map(|pick| Step::Work { pick }),
                2 => pick().prop_map(|pick| Step::Duplicate { pick }),
                3 => (1..hosts, pick()).prop_map(|(host, keep)| Step::KillHost { host, keep }),
                3 => ((0..hosts, 0..hosts), pick()).prop_map(|(hosts, keep)| Step::CutLink { hosts, keep }),
                6 => pick().prop_map(|pick| Step::NoticeLink { pick }),
                12 => pick().prop_map(|pick| Step::NoticeEnd { pick }),
                1 => Just(Step::Wait),
            ]
        };
        let steps = || proptest::collection::vec(step(), 1..50);
        (proptest::collection::vec(1usize..3, hosts), 1u32..4, steps(), steps())
    })
}

fn play(world: &mut World, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Group { caller, hosts, all } => world.group(caller, &hosts, all),
            Step::Cast { caller, group, mode } => world.cast(caller, group, mode),
            Step::Direct { caller, proc } => world.direct(caller, proc),
            Step::Forget { caller, group } => world.forget(caller, group),
            Step::Frames { picks } => picks.into_iter().for_each(|pick| _ = world.step(pick)),
            Step::Work { pick } => _ = world.work(pick),
            Step::Duplicate { pick } => world.duplicate(pick),
            Step::KillHost { host, keep } => world.kill_host(host, keep),
            Step::KillProc { pick } => world.kill_proc(pick),
            Step::CutLink { hosts: (a, b), keep } => world.cut_link(a, b, keep),
            Step::NoticeLink { pick } => _ = world.notice_link(pick),
            Step::NoticeEnd { pick } => _ = world.notice_end(pick),
            Step::Wait => _ = world.wait(),
        }
    }
}

/// Each proc has received the messages sent to it once and in the order sent; a proc that has ended has received the first of them.
fn check_order(world: &World) -> Result<(), TestCaseError> {
    let nothing = vec![];
    for (at, caller) in world.callers.iter().enumerate() {
        for proc in world.hosts.iter().flat_map(|h| &h.procs) {
            let sent = caller.sent.get(proc).unwrap_or(&nothing);
            let got = world.got.get(&(*proc, caller.uid)).unwrap_or(&nothing);
            if world.lives(*proc) && world.caller_lives(at) {
                prop_assert_eq!(sent, got, "proc {:?} of caller {}", proc, at);
            } else {
                prop_assert!(sent.starts_with(got), "proc {:?}: sent {:?}, got {:?}", proc, sent, got);
            }
        }
    }
    Ok(())
}

/// Each call has one outcome for each rank: the answer, or the end of the target.
fn check_outcomes(world: &World) -> Result<(), TestCaseError> {
    for call in world.calls.iter().filter(|c| world.caller_lives(c.source)) {
        let Some(cell) = &call.call else {
            prop_assert!(call.taken, "cast {} is never over", call.id);
            continue;
        };
        prop_assert_eq!(cell.outcomes().len(), call.targets.len(), "call {} waits for ever", call.id);
        for (index, proc) in call.targets.iter().enumerate() {
            let index = index as u32;
            let (status, bytes) = cell.outcomes().get(&index).ok_or_else(|| TestCaseError::fail("an outcome is missing"))?;
            if *status == Status::ProcEnded {
                prop_assert!(!world.lives(*proc), "a live proc is said to have ended");
            } else {
                prop_assert_eq!((*status, bytes.to_vec()), answer(call.id, index));
            }
        }
    }
    Ok(())
}

/// The relays keep no records that are not needed.
fn check_empty(world: &World) -> Result<(), TestCaseError> {
    for (at, host) in world.hosts.iter().enumerate().filter(|(_, h)| h.alive) {
        prop_assert_eq!(host.relay.records(), 0, "host {} keeps casts", at);
        prop_assert_eq!(host.relay.groups(), 0, "host {} keeps groups", at);
        prop_assert_eq!(world.held(at), 0, "host {} holds frames", at);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn order_and_answers_hold_despite_proc_ends((procs, fan_out, steps) in scenario()) {
        let mut world = World::new(&procs, fan_out);
        play(&mut world, steps);
        world.settle();
        check_order(&world)?;
        check_outcomes(&world)?;
        for caller in 0..2 {
            while world.caller_lives(caller) && !world.callers[caller].groups.is_empty() {
                world.forget(caller, 0);
            }
        }
        world.settle();
        check_empty(&world)?;
    }

    /// Few casts, and hosts that end at any time, also while the group is being forgotten.
    #[test]
    fn casts_complete_despite_many_proc_ends((procs, fan_out, before, after) in storm()) {
        let mut world = World::new(&procs, fan_out);
        world.group(0, &(1..procs.len()).collect::<Vec<_>>(), true);
        world.cast(0, 0, CastMode::Gather);
        world.cast(0, 0, CastMode::Taken);
        play(&mut world, before);
        world.cast(0, 0, CastMode::FirstError);
        play(&mut world, after.clone());
        world.settle();
        check_order(&world)?;
        check_outcomes(&world)?;
        world.forget(0, 0);
        play(&mut world, after);
        world.settle();
        check_empty(&world)?;
    }

    /// Without ends of hosts and procs, all records are freed when no frame is left; groups stay until they are forgotten.
    #[test]
    fn records_go_when_it_is_quiet((procs, fan_out, steps) in scenario()) {
        let mut world = World::new(&procs, fan_out);
        let quiet = |s: &Step| !matches!(s, Step::KillHost { .. } | Step::KillProc { .. } | Step::CutLink { .. });
        play(&mut world, steps.into_iter().filter(quiet).collect());
        world.settle();
        check_order(&world)?;
        check_outcomes(&world)?;
        for host in &world.hosts {
            prop_assert_eq!(host.relay.records(), 0);
        }
    }
}

/// The root sends the values of thousands of hosts in as many frames as it has children, and each host gets its own.
#[test]
fn root_sends_values_in_few_frames() {
    let hosts = 4096;
    let mut world = World::new(&[&[0][..], &vec![1; hosts]].concat(), FAN_OUT);
    world.group(0, &(1..=hosts).collect::<Vec<_>>(), true);
    // The second cast has values; the world checks what each frame and each target has of them.
    world.cast(0, 0, CastMode::Gather);
    world.settle();
    world.cast(0, 0, CastMode::Gather);
    let sent = world.channels.iter().filter(|((from, _), _)| *from == 0).map(|(_, frames)| frames.len()).sum::<usize>();
    assert!((1..=16).contains(&sent), "{sent} frames");
    world.settle();
    check_order(&world).unwrap();
    check_outcomes(&world).unwrap();
}
