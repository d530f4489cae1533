//! Many workers that join together by the join tree, and workers behind a gateway: calls to them, refusals, and relays that end.
#![cfg(not(feature = "shuttle"))]

mod hosts;

use std::net::TcpListener;
use std::time::Duration;

use hosts::{Cluster, Process, bytes, end_of_outcome, host_id};
use net::trust::{Policy, Secret};
use runtime::calls::pending_call::Outcome;
use runtime::membership::join::MAX_DIRECT;
use runtime::{Mode, SystemEvent};
use wire::join_tree::{JoinFailure, JoinFailureKind};
use wire::{ExitReason, Status};

/// More workers than join the client directly.
const MANY: usize = MAX_DIRECT + 4;
const SOON: Duration = Duration::from_secs(30);

fn cluster() -> Cluster {
    Cluster::with(Policy::Secret(Secret::from_bytes(&[7; 32]).unwrap()))
}

fn reason(outcome: &Outcome) -> String {
    String::from_utf8(bytes(&outcome.parts)).unwrap()
}

fn is_answered(cluster: &Cluster, proc: &Process) {
    let client = &cluster.client.process;
    let call = client.call(Mode::Gather, &[proc.uid()]);
    client.send(proc.uid(), call.call_id, &[b"question"]);
    let message = proc.actor().next();
    proc.node.replies.send_bytes(message.from, message.call_id, message.rank, Status::Ok, b"answer");
    assert_eq!(bytes(&client.answer(&call, 0).parts), b"answer");
}

// ---- a join tree

#[test]
fn all_workers_of_a_tree_join_and_answer() {
    let mut cluster = cluster();
    let ports: Vec<u16> = (0..MANY).map(|_| cluster.add_worker()).collect();
    for outcome in cluster.attach(&ports) {
        assert_eq!(outcome.status, Status::Ok, "{}", reason(&outcome));
    }
    let below = cluster.job.relayed_hosts().len();
    assert!((1..MANY).contains(&below), "{below} workers have another worker as their relay");
    let procs: Vec<Process> = (0..MANY).map(|worker| cluster.proc(worker, host_id(worker).0 + 1)).collect();
    procs.iter().for_each(|proc| is_answered(&cluster, proc));
    assert!(cluster.job.hosts().iter().all(|host| host.lost().is_none()));
}

#[test]
fn worker_that_does_not_join_is_reported_alone() {
    let mut cluster = cluster();
    let mut ports: Vec<u16> = (0..MANY).map(|_| cluster.add_worker()).collect();
    // A worker with another secret, in the place of the last one.
    let other_proc = hosts::Host::start(99);
    let policy = Policy::Secret(Secret::from_bytes(&[8; 32]).unwrap());
    let address = net::address::Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    ports[MANY - 1] = other_proc.gateway.listen(&address, policy).unwrap();
    let outcomes = cluster.attach(&ports);
    let (last, others) = outcomes.split_last().unwrap();
    assert!(others.iter().all(|outcome| outcome.status == Status::Ok));
    assert_eq!(last.status, Status::Error);
    let failure: JoinFailure = wire::greeting::decode(&bytes(&last.parts)).unwrap();
    assert_eq!((failure.kind, &*failure.why), (JoinFailureKind::Authentication, "refused by the other end"));
}

/// The relay is one of the workers that joined the client directly.
#[test]
fn workers_outlive_their_relay() {
    let mut cluster = cluster();
    let ports: Vec<u16> = (0..MANY).map(|_| cluster.add_worker()).collect();
    assert!(cluster.attach(&ports).iter().all(|outcome| outcome.status == Status::Ok));
    let below = cluster.job.relayed_hosts();
    let relays: Vec<usize> = (0..MANY).filter(|worker| !below.contains(&host_id(*worker))).collect();
    let kept: Vec<usize> = (0..MANY).filter(|worker| below.contains(&host_id(*worker))).collect();
    let procs: Vec<Process> = kept.iter().map(|worker| cluster.proc(*worker, host_id(*worker).0 + 1)).collect();
    for relay in &relays {
        cluster.workers[*relay].gateway.close(SOON);
    }
    procs.iter().for_each(|proc| is_answered(&cluster, proc));
    let lost: Vec<usize> = (0..MANY).filter(|worker| cluster.job.host(host_id(*worker)).unwrap().lost().is_some()).collect();
    assert_eq!(lost, relays);
}

#[test]
fn client_end_reaches_every_worker_of_a_tree() {
    let mut cluster = cluster();
    let ports: Vec<u16> = (0..MANY).map(|_| cluster.add_worker()).collect();
    assert!(cluster.attach(&ports).iter().all(|outcome| outcome.status == Status::Ok));
    // A worker joins before its session is open: an answer shows that the session is open.
    let procs: Vec<Process> = (0..MANY).map(|worker| cluster.proc(worker, host_id(worker).0 + 1)).collect();
    procs.iter().for_each(|proc| is_answered(&cluster, proc));
    cluster.client.gateway.close(SOON);
    for (index, worker) in cluster.workers.iter().enumerate() {
        let here = worker.process.expect(|e| if let SystemEvent::JobEnded { here } = e { Some(here) } else { None });
        assert_eq!(here, host_id(index));
        assert!(worker.gateway.jobs().is_empty());
    }
}

// ---- workers behind a gateway

#[test]
fn worker_behind_a_gateway_answers() {
    let mut cluster = cluster();
    let (gateway, behind) = (cluster.add_worker(), cluster.add_worker());
    assert_eq!(cluster.use_gateway(gateway).status, Status::Ok);
    cluster.client.gateway.announce(&cluster.job, &[host_id(1)]);
    assert_eq!(cluster.join(host_id(1), behind, 0).status, Status::Ok);
    is_answered(&cluster, &cluster.proc(1, 301));
    assert_eq!(cluster.client.gateway.route_gateway().unwrap().address, "the gateway");
}

/// The gateway reports the error of its own network: a host that has answered, and then refuses connections, has ended.
#[test]
fn worker_unreachable_by_its_gateway_does_not_join() {
    let mut cluster = cluster();
    let gateway = cluster.add_worker();
    assert_eq!(cluster.use_gateway(gateway).status, Status::Ok);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    cluster.client.gateway.announce(&cluster.job, &[host_id(1)]);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(move || {
            let first = listener.accept().unwrap();
            // Before the client's first attempt fails.
            drop(listener);
            drop(first);
        });
        cluster.join(host_id(1), port, 0)
    });
    let failure: JoinFailure = wire::greeting::decode(&bytes(&outcome.parts)).unwrap();
    assert_eq!((outcome.status, failure.kind), (Status::Error, JoinFailureKind::Ended));
    assert!(failure.why.contains("refused"), "{}", failure.why);
}

#[test]
fn workers_are_lost_with_their_gateway() {
    let mut cluster = cluster();
    let (gateway, behind) = (cluster.add_worker(), cluster.add_worker());
    assert_eq!(cluster.use_gateway(gateway).status, Status::Ok);
    cluster.client.gateway.announce(&cluster.job, &[host_id(1)]);
    assert_eq!(cluster.join(host_id(1), behind, 0).status, Status::Ok);
    let (client, proc) = (&cluster.client.process, cluster.proc(1, 301));
    let call = client.call(Mode::Gather, &[proc.uid()]);
    client.send(proc.uid(), call.call_id, &[b"question"]);
    proc.actor().next();
    cluster.workers[0].gateway.close(SOON);
    let end = end_of_outcome(&client.answer(&call, 0));
    assert!(matches!(end.reason, ExitReason::HostLost(_)), "{end:?}");
    assert!(cluster.client.gateway.route_gateway().is_some_and(|way| way.host.lost().is_some()));
}
