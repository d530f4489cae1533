//! The agent's decisions about its procs: which processes are notified of an end, which procs are stopped with others, and when a proc is
//! killed.
#![cfg(not(feature = "shuttle"))]

mod hosts;

use std::time::Duration;

use hosts::{BOX, CLIENT, Host, bytes, killed};
use runtime::SystemEvent;
use runtime::agent::zygote::Report;
use runtime::agent::{Agent, AgentOptions};
use wire::control::ProcPlan;
use wire::{CallId, Control, ExitReason, MailboxId, ProcUid};

const GRACE: Duration = Duration::from_secs(7);
/// The time that a proc has to end after its owner has ended.
const ORPHANS_GRACE: Duration = Duration::from_secs(2);

fn stopped(why: &str) -> ExitReason {
    ExitReason::Stopped(why.to_owned())
}

#[test]
fn owner_learns_how_its_proc_was_killed() {
    let host = Host::start(1);
    let proc = host.proc(101);
    assert_eq!(host.agent.alive(), [(proc.uid(), std::process::id())]);
    host.agent.kill(proc.uid());
    let end = host.process.end_of(proc.uid());
    assert_eq!((end.reason, end.started, &*end.host), (killed(), true, "host1"));
    assert!(host.agent.alive().is_empty());
    assert!(matches!(proc.event(), SystemEvent::RootLost));
}

#[test]
fn proc_killed_before_its_start_never_started() {
    let host = Host::start(1);
    host.ask_for(CLIENT, &[ProcUid(101)], &ProcPlan::default());
    host.agent.kill(ProcUid(101));
    assert!(!host.process.end_of(ProcUid(101)).started);
}

#[test]
fn exit_status_is_the_reason() {
    let host = Host::start(1);
    let (returns, fails) = (host.proc(101), host.proc(102));
    host.exits(&returns, 0);
    assert_eq!(host.process.end_of(returns.uid()).reason, ExitReason::Returned);
    host.exits(&fails, 3 << 8);
    assert_eq!(host.process.end_of(fails.uid()).reason, ExitReason::ExitCode(3));
}

/// The children of a zygote end with it.
#[test]
fn all_procs_end_with_the_zygote() {
    let host = Host::start(1);
    let (first, second) = (host.proc(101), host.proc(102));
    host.agent.report(Report::Gone);
    let mut ends = host.process.ends();
    ends.sort_by_key(|(uid, _)| *uid);
    let reasons: Vec<_> = ends.into_iter().map(|(uid, end)| (uid, end.reason)).collect();
    assert_eq!(reasons, [(first.uid(), killed()), (second.uid(), killed())], "one cause, one report");
}

// ---- links between procs

#[test]
fn message_to_a_starting_proc_waits() {
    let host = Host::start(1);
    let asker = host.proc(101);
    asker.send(ProcUid(102), CallId::NONE, &[b"early"]);
    host.process.settle(&asker);
    let late = host.proc(102);
    assert_eq!(bytes(&late.actor().next().parts), b"early");
}

#[test]
fn proc_is_notified_of_its_peers_end() {
    let host = Host::start(1);
    let (first, second) = (host.proc(101), host.proc(102));
    first.send(second.uid(), CallId::NONE, &[b"hello"]);
    second.actor().next();
    host.agent.kill(second.uid());
    assert_eq!(first.end_of(second.uid()).reason, killed());
}

#[test]
fn proc_can_query_the_end_of_another() {
    let host = Host::start(1);
    let (asker, ended) = (host.proc(101), host.proc(102));
    host.exits(&ended, 3 << 8);
    host.process.end_of(ended.uid());
    asker.node.peers.peer(ended.uid());
    assert_eq!(asker.end_of(ended.uid()).reason, ExitReason::ExitCode(3));
}

#[test]
fn watcher_without_a_link_learns_of_an_end() {
    let host = Host::start(1);
    let (watcher, watched) = (host.proc(101), host.proc(102));
    let watch = || watcher.node.peers.to_agent(Control::Watch { target: watched.uid() });
    watch();
    host.process.settle(&watcher);
    host.agent.kill(watched.uid());
    assert_eq!(watcher.end_of(watched.uid()).reason, killed());
}

#[test]
fn watcher_that_comes_late_learns_of_an_end() {
    let host = Host::start(1);
    let (watcher, watched) = (host.proc(101), host.proc(102));
    host.agent.kill(watched.uid());
    host.process.end_of(watched.uid());
    watcher.node.peers.to_agent(Control::Watch { target: watched.uid() });
    assert_eq!(watcher.end_of(watched.uid()).reason, killed());
}

// ---- owners

#[test]
fn procs_of_an_ended_owner_are_stopped() {
    let host = Host::simulated(1);
    let owner = host.proc(101);
    owner.node.peers.to_agent(Control::SpawnProcs { owner: owner.uid(), procs: vec![(ProcUid(102), ProcPlan::default())] });
    let orphan = host.started();
    host.agent.kill(owner.uid());
    let reason = orphan.expect(|e| if let SystemEvent::StopProc { reason, .. } = e { Some(reason) } else { None });
    assert_eq!(reason, "its owner is gone");
    // The proc does not end by itself.
    let before = host.elapsed();
    orphan.expect(|e| matches!(e, SystemEvent::RootLost).then_some(()));
    assert_eq!(host.elapsed() - before, ORPHANS_GRACE);
}

#[test]
fn ended_owner_gets_no_procs() {
    let host = Host::start(1);
    let owner = host.proc(101);
    host.agent.kill(owner.uid());
    host.process.end_of(owner.uid());
    // The request of a client on behalf of an owner whose end the client does not know yet.
    host.agent.control(CLIENT, Control::SpawnProcs { owner: owner.uid(), procs: vec![(ProcUid(102), ProcPlan::default())] });
    let end = host.process.end_of(ProcUid(102));
    assert_eq!(end.reason, ExitReason::NotStarted("cannot start a process: its owner is gone".to_owned()));
    assert!(!end.started);
}

#[test]
fn closed_agent_starts_no_proc() {
    let host = Host::start(1);
    // An agent with a zygote, which it would start now.
    let options = AgentOptions { host: "closed".into(), zygote: vec![], env: vec![], tail_lines: 0, consoles: [-1; 2] };
    let closed = Agent::new(&host.process.node, options).unwrap();
    closed.close(Duration::ZERO);
    closed.control(CLIENT, Control::SpawnProcs { owner: CLIENT, procs: vec![(ProcUid(101), ProcPlan::default())] });
    let end = host.process.end_of(ProcUid(101));
    assert_eq!(end.reason, ExitReason::NotStarted("cannot start a process: the client is shutting down".to_owned()));
}

#[test]
fn stranger_gets_no_procs() {
    let host = Host::start(1);
    let known = host.proc(101);
    let procs = vec![(ProcUid(102), ProcPlan::default())];
    host.agent.control(ProcUid(999), Control::SpawnProcs { owner: ProcUid(999), procs });
    // The request of a known process is the first that is carried out.
    host.ask_for(known.uid(), &[ProcUid(103)], &ProcPlan::default());
    assert_eq!(host.started().uid(), ProcUid(103));
}

// ---- stops

#[test]
fn stopped_proc_may_end_by_itself() {
    let host = Host::simulated(1);
    let proc = host.proc(101);
    host.agent.stop_proc(proc.uid(), GRACE, None, "enough");
    proc.expect(|e| matches!(e, SystemEvent::StopProc { .. }).then_some(()));
    host.exits(&proc, 0);
    assert_eq!(host.process.end_of(proc.uid()).reason, stopped("enough"));
    assert_eq!(host.elapsed(), Duration::ZERO);
}

#[test]
fn stopped_proc_is_killed_after_its_grace() {
    let host = Host::simulated(1);
    let proc = host.proc(101);
    host.agent.stop_proc(proc.uid(), GRACE, None, "enough");
    assert_eq!(host.process.end_of(proc.uid()).reason, stopped("enough"));
    assert_eq!(host.elapsed(), GRACE);
}

#[test]
fn first_stop_gives_the_reason() {
    let host = Host::simulated(1);
    let proc = host.proc(101);
    host.agent.stop_proc(proc.uid(), GRACE, None, "first");
    host.agent.stop_proc(proc.uid(), GRACE, None, "second");
    assert_eq!(host.process.end_of(proc.uid()).reason, stopped("first"));
}

#[test]
fn clean_up_moves_the_kill() {
    let host = Host::simulated(1);
    let proc = host.proc(101);
    host.agent.stop_proc(proc.uid(), GRACE, None, "enough");
    proc.node.peers.to_agent(Control::Extend { grace_ms: 2 * GRACE.as_millis() as u64 });
    assert_eq!(host.process.end_of(proc.uid()).reason, stopped("enough"));
    assert_eq!(host.elapsed(), 2 * GRACE);
}

#[test]
fn crash_in_a_clean_up_is_no_stop() {
    let host = Host::simulated(1);
    let (crashes, ends) = (host.proc(101), host.proc(102));
    for proc in [&crashes, &ends] {
        host.agent.stop_proc(proc.uid(), GRACE, None, "enough");
        proc.node.peers.to_agent(Control::Cleanup { mesh: BOX, begins: true });
    }
    ends.node.peers.to_agent(Control::Cleanup { mesh: BOX, begins: false });
    host.process.settle(&crashes);
    host.process.settle(&ends);
    host.exits(&crashes, libc::SIGSEGV);
    let end = host.process.end_of(crashes.uid());
    assert_eq!((end.reason, end.cleaning), (ExitReason::Signal { signal: libc::SIGSEGV, core_dumped: false }, vec![BOX]));
    // The clean-up was finished: a library that crashes in a destructor is no failure.
    host.exits(&ends, libc::SIGSEGV);
    let end = host.process.end_of(ends.uid());
    assert_eq!((end.reason, end.cleaning), (stopped("enough"), Vec::<MailboxId>::new()));
}

#[test]
fn proc_killed_during_cleanup_counts_as_stopped() {
    let host = Host::simulated(1);
    let proc = host.proc(101);
    host.agent.stop_proc(proc.uid(), GRACE, None, "enough");
    proc.node.peers.to_agent(Control::Cleanup { mesh: BOX, begins: true });
    assert_eq!(host.process.end_of(proc.uid()).reason, stopped("enough"));
}

#[test]
fn proc_that_is_never_ready_is_ended() {
    let host = Host::simulated(1);
    let plan = ProcPlan { ready_ms: 5000, ..ProcPlan::default() };
    host.ask_for(CLIENT, &[ProcUid(101), ProcUid(102)], &plan);
    let comes_up = host.started();
    let end = host.process.end_of(ProcUid(102));
    assert_eq!(end.reason, ExitReason::NotStarted("not ready after 5 s".to_owned()));
    assert_eq!(host.elapsed(), Duration::from_secs(5));
    assert_eq!(host.agent.alive().len(), 1, "{:?} came up in time", comes_up.uid());
}

/// A proc may close its descriptors without ending.
#[test]
fn proc_whose_link_ends_is_killed() {
    let host = Host::simulated(1);
    let proc = host.proc(101);
    proc.node.peers.peer(CLIENT).link.close();
    assert_eq!(host.process.end_of(proc.uid()).reason, killed());
}

#[test]
fn wait_for_quiet_ends_with_the_last_proc() {
    let host = Host::start(1);
    let proc = host.proc(101);
    assert!(!host.agent.wait_idle(Duration::ZERO));
    host.agent.kill(proc.uid());
    host.process.end_of(proc.uid());
    assert!(host.agent.wait_idle(Duration::from_secs(30)));
}
