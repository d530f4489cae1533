//! Casts of a client to procs of other hosts: when a message becomes a cast, and the outcome of each target.
#![cfg(not(feature = "shuttle"))]

mod hosts;

use std::sync::Arc;

use hosts::{BOX, CLIENT, Cluster, Process, bytes, end_of_outcome, host_id, killed};
use runtime::caster::{Group, MAX_PAYLOAD};
use runtime::mailboxes::credit::WINDOW;
use runtime::peers::peer::Head;
use runtime::transfers::payload::OutPart;
use runtime::{Mode, Payload, Peer, PendingCall};
use wire::cast::{Answer, CastFrame, Reduced};
use wire::frame::{CAST, begin, finish};
use wire::group::Span;
use wire::runs::Runs;
use wire::{CallId, GroupId, MailboxId, ProcUid, Status};

/// A client, and procs of its workers that are addressed as one group.
struct Mesh {
    procs: Vec<Process>,
    peers: Vec<Arc<Peer>>,
    group: Group,
    cluster: Cluster,
}

impl Mesh {
    /// A mesh with `procs` procs on each worker.
    fn of(workers: usize, procs: u64) -> Mesh {
        let cluster = Cluster::of(workers);
        let uid = |worker: usize, n: u64| host_id(worker).0 + 1 + n;
        let procs: Vec<Process> =
            (0..workers).flat_map(|w| (0..procs).map(move |n| (w, n))).map(|(w, n)| cluster.proc(w, uid(w, n))).collect();
        let node = &cluster.client.process.node;
        let targets: Vec<_> = procs.iter().map(|p| (p.uid(), BOX)).collect();
        let peers = procs.iter().map(|p| node.peers.peer(p.uid())).collect();
        let group = node.caster.group(&targets).expect("two targets on other hosts");
        Mesh { procs, peers, group, cluster }
    }

    fn client(&self) -> &Process {
        &self.cluster.client.process
    }

    fn cast(&self, call_id: CallId, mode: Option<Mode>, payload: &Payload<'_>) -> bool {
        let head = Head { dest: BOX, sender: MailboxId(5), call_id, method: b"go", ..Head::default() };
        self.client().node.caster.cast(&self.group, &self.peers, &head, mode, payload, None)
    }

    fn call(&self, mode: Mode) -> Arc<PendingCall> {
        let targets: Vec<ProcUid> = self.procs.iter().map(Process::uid).collect();
        let cell = self.client().call(mode, &targets);
        assert!(self.cast(cell.call_id, Some(mode), &Payload::small(b"question")));
        // Every caller handles the ends that were known before the call.
        for (rank, peer) in self.peers.iter().enumerate().filter(|(_, p)| p.ended().is_some()) {
            self.client().node.calls.fail_rank(&cell, rank as u32, peer);
        }
        cell
    }

    fn answers(&self, proc: usize, status: Status, answer: &[u8]) {
        let message = self.procs[proc].actor().next();
        assert_eq!((message.from, bytes(&message.parts)), (CLIENT, b"question".to_vec()));
        self.procs[proc].node.replies.send_bytes(message.from, message.call_id, message.rank, status, answer);
    }
}

#[test]
fn every_target_gets_the_message_and_answers() {
    let mesh = Mesh::of(3, 2);
    let call = mesh.call(Mode::Gather);
    for proc in 0..6 {
        mesh.answers(proc, Status::Ok, format!("answer {proc}").as_bytes());
    }
    for rank in 0..6 {
        assert_eq!(bytes(&mesh.client().answer(&call, rank).parts), format!("answer {rank}").as_bytes());
    }
    assert_eq!(mesh.client().node.caster.waiting(), 0);
}

/// Equal answers are combined into one.
#[test]
fn equal_answers_are_the_answers_of_all() {
    let mesh = Mesh::of(2, 3);
    let call = mesh.call(Mode::Gather);
    (0..6).for_each(|proc| mesh.answers(proc, Status::Ok, b"same"));
    (0..6).for_each(|rank| assert_eq!(bytes(&mesh.client().answer(&call, rank).parts), b"same"));
}

#[test]
fn message_without_answers_is_a_cast_too() {
    let mesh = Mesh::of(2, 1);
    assert!(mesh.cast(CallId::NONE, None, &Payload::small(b"no answer")));
    for proc in &mesh.procs {
        assert_eq!(bytes(&proc.actor().next().parts), b"no answer");
    }
    assert_eq!(mesh.client().node.caster.waiting(), 0);
}

#[test]
fn first_error_ends_the_call() {
    let mesh = Mesh::of(2, 1);
    let call = mesh.call(Mode::FirstError);
    mesh.answers(1, Status::Error, b"broken");
    let outcome = mesh.client().answer(&call, 1);
    assert_eq!((outcome.status, bytes(&outcome.parts)), (Status::Error, b"broken".to_vec()));
    assert!(call.outcome(0).is_none());
}

// ---- targets that end

#[test]
fn target_that_ends_fails_its_rank_only() {
    let mesh = Mesh::of(2, 2);
    let call = mesh.call(Mode::Gather);
    // The proc has received the message, and does not answer.
    mesh.procs[1].actor().next();
    mesh.cluster.workers[0].agent.kill(mesh.procs[1].uid());
    [0, 2, 3].into_iter().for_each(|proc| mesh.answers(proc, Status::Ok, b"answer"));
    let outcome = mesh.client().answer(&call, 1);
    assert_eq!((outcome.status, end_of_outcome(&outcome).reason), (Status::ProcEnded, killed()));
    [0, 2, 3].into_iter().for_each(|rank| assert_eq!(mesh.client().answer(&call, rank).status, Status::Ok));
}

/// The report of the end has not reached the client when it casts.
#[test]
fn cast_to_an_ended_target_fails_its_rank() {
    let mesh = Mesh::of(2, 1);
    mesh.cluster.workers[0].agent.kill(mesh.procs[0].uid());
    let call = mesh.call(Mode::Gather);
    mesh.answers(1, Status::Ok, b"answer");
    let outcome = mesh.client().answer(&call, 0);
    assert_eq!((outcome.status, end_of_outcome(&outcome).reason), (Status::ProcEnded, killed()));
}

#[test]
fn lost_host_fails_the_ranks_of_its_procs() {
    let mesh = Mesh::of(2, 2);
    let call = mesh.call(Mode::Gather);
    [2, 3].into_iter().for_each(|proc| mesh.answers(proc, Status::Ok, b"answer"));
    mesh.cluster.workers[0].gateway.close(std::time::Duration::from_secs(30));
    for rank in [0, 1] {
        assert_eq!(mesh.client().answer(&call, rank).status, Status::ProcEnded);
    }
    for rank in [2, 3] {
        assert_eq!(mesh.client().answer(&call, rank).status, Status::Ok);
    }
}

// ---- calls that are no casts

#[test]
fn one_remote_target_is_no_group() {
    let cluster = Cluster::of(1);
    let (near, far) = (cluster.client.proc(101), cluster.proc(0, 201));
    let group = cluster.client.process.node.caster.group(&[(near.uid(), BOX), (far.uid(), BOX)]);
    assert!(group.is_none());
    assert!(cluster.client.process.node.caster.group(&[]).is_none());
}

#[test]
fn targets_on_this_host_are_sent_to_directly() {
    let cluster = Cluster::of(1);
    let procs = [cluster.proc(0, 201), cluster.client.proc(101), cluster.proc(0, 202)];
    let targets: Vec<_> = procs.iter().map(|p| (p.uid(), BOX)).collect();
    let group = cluster.client.process.node.caster.group(&targets).unwrap();
    assert_eq!(group.direct_ranks, [1]);
}

#[test]
fn large_message_goes_to_each_target() {
    let mesh = Mesh::of(2, 1);
    let large = vec![0; MAX_PAYLOAD as usize + 1];
    let parts = [OutPart { bytes: &large, readonly: true }];
    let payload = Payload::new(&mesh.client().node.arena, parts).unwrap();
    assert!(!mesh.cast(CallId::NONE, None, &payload));
    let call = mesh.client().call(Mode::Gather, &[mesh.procs[0].uid(), mesh.procs[1].uid()]);
    assert!(!mesh.cast(call.call_id, Some(Mode::Gather), &payload));
}

#[test]
fn stream_of_answers_is_no_cast() {
    let mesh = Mesh::of(2, 1);
    assert!(!mesh.cast(CallId(1), Some(Mode::Stream), &Payload::small(b"x")));
}

/// A target without credit delays its senders, as it does without casts.
#[test]
fn target_without_credit_is_waited_for() {
    let mesh = Mesh::of(2, 1);
    mesh.peers[1].spend(BOX, WINDOW);
    assert!(!mesh.cast(CallId::NONE, None, &Payload::small(b"x")));
    mesh.peers[1].refill(BOX, WINDOW, drop);
    assert!(mesh.cast(CallId::NONE, None, &Payload::small(b"x")));
}

// ---- stale frames

/// The answers belong to a call that is over or never existed, or to a target that is not in the group.
#[test]
fn stale_answers_change_nothing() {
    let mesh = Mesh::of(2, 1);
    let (agent, caster) = (mesh.client(), mesh.cluster.client.proc(101));
    for (worker, proc) in mesh.procs.iter().enumerate() {
        caster.node.peers.route(proc.uid(), host_id(worker), CLIENT);
    }
    let targets = [mesh.procs[0].uid(), mesh.procs[1].uid()];
    let group = caster.node.caster.group(&targets.map(|uid| (uid, BOX))).unwrap();
    let call = caster.call(Mode::Gather, &targets);
    let head = Head { dest: BOX, sender: MailboxId(5), call_id: call.call_id, method: b"go", ..Head::default() };
    let peers = targets.map(|uid| caster.node.peers.peer(uid));
    assert!(caster.node.caster.cast(&group, &peers, &head, Some(Mode::Gather), &Payload::small(b"question"), None));
    // These are frames of the caster's own agent: the caster accepts answers from this agent only.
    let mut runs = Runs::default();
    runs.push(9, Status::Ok as u8, b"stale");
    let span = Span { start: 0, end: 9 };
    let ids = || (0..4).map(|number| GroupId { source: caster.uid(), number });
    let unknown = ids().map(|group| CastFrame::Reduced(Reduced { group, number: 1000, ask: 0, span, runs: runs.clone() }));
    let beyond = ids().flat_map(|group| (0..4).map(move |number| (group, number))).map(|(group, number)| {
        let bytes: Arc<[u8]> = b"stale"[..].into();
        CastFrame::Answer(Answer { group, number, ask: 0, index: 99, status: Status::Ok, bytes })
    });
    for frame in unknown.chain(beyond) {
        let (body, mut start) = (frame.encode(), Vec::new());
        let at = begin(&mut start, CAST);
        finish(&mut start, at, body.len());
        agent.node.peers.peer(caster.uid()).link.send(&[&start, &body], vec![]).unwrap();
    }
    caster.settle(agent);
    assert_eq!((call.is_done(0), caster.node.caster.waiting()), (false, 1));
    for proc in &mesh.procs {
        let message = proc.actor().next();
        proc.node.replies.send_bytes(message.from, message.call_id, message.rank, Status::Ok, b"true");
    }
    (0..2).for_each(|rank| assert_eq!(bytes(&caster.answer(&call, rank).parts), b"true"));
    assert_eq!(caster.node.caster.waiting(), 0);
}
