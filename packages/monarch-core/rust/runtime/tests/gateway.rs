//! A client and its workers: joins and refusals, frames between hosts, and the end of a host, of a job, and of a process.
#![cfg(not(feature = "shuttle"))]

mod hosts;
mod refused_calls;

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hosts::{BOX, CLIENT, Cluster, Host, Process, bytes, end_of_outcome, host_id, killed};
use net::session::Session;
use net::trust::Policy;
use refused_calls::refuse;
use runtime::calls::pending_call::Outcome;
use runtime::gateway::Audit;
use runtime::roles::LocalGateway;
use runtime::{Mode, SystemEvent};
use wire::control::ProcPlan;
use wire::frame::{ROUTED, begin, finish};
use wire::greeting::JobSettings;
use wire::{CallId, Control, ExitReason, Frame, MailboxId, Message, ProcUid, Route, Status};

const SOON: Duration = Duration::from_secs(30);

fn lost(why: &str) -> ExitReason {
    ExitReason::HostLost(why.to_owned())
}

fn reason(outcome: &Outcome) -> String {
    bytes(&outcome.parts).iter().map(|b| *b as char).collect()
}

// ---- joins

#[test]
fn joined_host_is_a_member_with_its_name() {
    let cluster = Cluster::of(1);
    let host = cluster.job.host(host_id(0)).unwrap();
    assert_eq!((&*host.name(), host.lost()), ("host2", None));
    let job = cluster.workers[0].gateway.job(CLIENT).unwrap();
    assert_eq!(job.own_id, host_id(0), "the client gives the host its id");
    assert!(!job.is_clients() && cluster.job.is_clients());
}

#[test]
fn another_agent_at_the_address_does_not_join() {
    let mut cluster = Cluster::of(0);
    let port = cluster.add_worker();
    let outcome = cluster.join(host_id(0), port, 99);
    assert_eq!(outcome.status, Status::Error);
    assert!(reason(&outcome).contains("another agent answers at this address"), "{}", reason(&outcome));
    assert!(cluster.workers[0].gateway.jobs().is_empty());
}

#[test]
fn host_does_not_join_twice() {
    let mut cluster = Cluster::of(0);
    let port = cluster.add_worker();
    assert_eq!(cluster.join(host_id(0), port, 0).status, Status::Ok);
    let outcome = cluster.join(host_id(1), port, 0);
    assert!(reason(&outcome).contains("this host is in the job already, by another address"), "{}", reason(&outcome));
}

#[test]
fn calls_to_an_abandoned_host_fail() {
    let cluster = Cluster::of(0);
    cluster.client.gateway.announce(&cluster.job, &[host_id(0)]);
    let client = &cluster.client.process;
    let (join, call) = (client.node.calls.start(Mode::Gather, 1, Arc::default()), client.call(Mode::Gather, &[host_id(0)]));
    client.send(host_id(0), call.call_id, &[b"waits for the join"]);
    cluster.client.gateway.give_up(&cluster.job, host_id(0), join.call_id, 0, "its machine was not granted");
    assert!(reason(&client.answer(&join, 0)).contains("its machine was not granted"));
    let end = end_of_outcome(&client.answer(&call, 0));
    assert!(matches!(&end.reason, ExitReason::HostLost(why) if why.contains("its machine was not granted")), "{end:?}");
}

#[test]
fn worker_that_ends_listens_no_more() {
    let mut cluster = Cluster::of(0);
    cluster.add_worker();
    let worker = &cluster.workers[0];
    assert!(worker.gateway.is_agent());
    worker.gateway.close(Duration::ZERO);
    assert!(!worker.gateway.is_agent());
}

#[test]
fn job_gets_no_id_without_random_number() {
    let cluster = Cluster::of(0);
    let settings = JobSettings { loss_ms: 60_000, reconnect_ms: 60_000, lease_ms: 0 };
    let jobs = cluster.client.gateway.jobs().len();
    let start = || {
        refuse(libc::SYS_getrandom, None, libc::ENOSYS);
        cluster.client.gateway.start_gateway_job(settings)
    };
    let made = std::thread::scope(|s| s.spawn(start).join().unwrap());
    assert_eq!(made.err().unwrap().to_string(), "no random number: function not implemented");
    assert_eq!(cluster.client.gateway.jobs().len(), jobs);
}

/// The kernel has no watch left for the connection that replaces a broken one.
#[test]
fn host_is_lost_whose_connection_is_not_watched() {
    let cluster = Cluster::of(1);
    let (client, host) = (&cluster.client.process, cluster.job.host(host_id(0)).unwrap());
    let no_watches = || refuse(libc::SYS_epoll_ctl, Some(libc::EPOLL_CTL_ADD), libc::ENOSPC);
    client.node.poller.spawn(Box::new(move || {
        no_watches();
        host.session.cut();
    }));
    // The thread that waits may read the sockets too.
    let wait = || {
        no_watches();
        client.end_of(host_id(0)).reason
    };
    let reason = std::thread::scope(|s| s.spawn(wait).join().unwrap());
    assert_eq!(reason, lost("the kernel does not watch the connection to it: no space left on device, see fs.epoll.max_user_watches"));
}

// ---- the same client again

/// The only worker ends the job, and the client is notified of that.
fn end_job(cluster: &Cluster) {
    let client = &cluster.client.process;
    let news = Control::HostsLost { hosts: vec![(host_id(0), "it was silent".to_owned())] };
    client.node.peers.peer(host_id(0)).send_control(news);
    cluster.workers[0].process.expect(|e| matches!(e, SystemEvent::JobEnded { .. }).then_some(()));
    client.end_of(host_id(0));
}

fn is_answered(from: &Process, to: &Process, text: &[u8]) {
    let call = from.call(Mode::Gather, &[to.uid()]);
    from.send(to.uid(), call.call_id, &[text]);
    let message = to.actor().next();
    assert_eq!((message.from, bytes(&message.parts)), (from.uid(), text.to_vec()));
    to.node.replies.send_bytes(message.from, message.call_id, message.rank, Status::Ok, b"answer");
    assert_eq!(bytes(&from.answer(&call, 0).parts), b"answer");
}

/// For the worker, the client and a proc of the client's host are processes that were lost with their host.
#[test]
fn worker_that_ended_a_job_joins_it_again() {
    let mut cluster = Cluster::of(0);
    let port = cluster.add_worker();
    cluster.client.gateway.announce(&cluster.job, &[host_id(0)]);
    assert_eq!(cluster.join(host_id(0), port, 0).status, Status::Ok);
    let (near, remote) = (cluster.client.proc(101), cluster.proc(0, 201));
    near.node.peers.route(remote.uid(), host_id(0), CLIENT);
    is_answered(&cluster.client.process, &remote, b"before");
    is_answered(&near, &remote, b"before");
    end_job(&cluster);
    for again in [host_id(5), host_id(6)] {
        cluster.client.gateway.announce(&cluster.job, &[again]);
        let outcome = cluster.join(again, port, 0);
        assert_eq!(outcome.status, Status::Ok, "{}", reason(&outcome));
        let remote = cluster.proc_on(again, 0, again.0 + 1);
        remote.node.peers.route(near.uid(), CLIENT, again);
        near.node.peers.route(remote.uid(), again, CLIENT);
        is_answered(&cluster.client.process, &remote, b"again");
        is_answered(&near, &remote, b"again");
        is_answered(&remote, &near, b"again");
        // The new job can end too.
        let news = Control::HostsLost { hosts: vec![(again, "it was silent again".to_owned())] };
        cluster.client.process.node.peers.peer(again).send_control(news);
        assert_eq!(cluster.client.process.end_of(remote.uid()).reason.kind(), "host_lost");
        cluster.workers[0].process.expect(|e| matches!(e, SystemEvent::JobEnded { here } if here == again).then_some(()));
    }
}

/// The procs of the former job have ended with it.
#[test]
fn worker_does_not_rejoin_by_the_same_id() {
    let mut cluster = Cluster::of(0);
    let port = cluster.add_worker();
    assert_eq!(cluster.join(host_id(0), port, 0).status, Status::Ok);
    end_job(&cluster);
    let outcome = cluster.join(host_id(0), port, 0);
    assert_eq!(outcome.status, Status::Error);
    assert!(reason(&outcome).contains("refused after being declared lost"), "{}", reason(&outcome));
    assert!(cluster.workers[0].gateway.jobs().is_empty());
}

/// The client has declared the worker lost, and the worker has not noticed that.
#[test]
fn worker_is_asked_again_until_its_lease_ends() {
    let settings = JobSettings { loss_ms: 3_000, reconnect_ms: 60_000, lease_ms: 1_000 };
    let mut cluster = Cluster::with_settings(Policy::Insecure, settings);
    let port = cluster.add_worker();
    assert_eq!(cluster.join(host_id(0), port, 0).status, Status::Ok);
    let client = &cluster.client;
    client.gateway.cut_off(&[host_id(0)], &[]);
    let cell = client.process.node.calls.start(Mode::Gather, 1, Arc::default());
    client.gateway.give_up(&cluster.job, host_id(0), cell.call_id, 0, "a test has cut it off");
    let outcome = cluster.join(host_id(5), port, 0);
    assert_eq!(outcome.status, Status::Ok, "{}", reason(&outcome));
    assert_eq!(cluster.workers[0].gateway.job(CLIENT).map(|job| job.own_id), Some(host_id(5)));
    // The lease of the former job has ended.
    let ended = cluster.workers[0].process.expect(|e| if let SystemEvent::JobEnded { here } = e { Some(here) } else { None });
    assert_eq!(ended, host_id(0));
}

/// A process that serves several jobs outlives the end of one of them.
#[test]
fn process_that_outlived_its_host_is_reached_again() {
    let mut cluster = Cluster::of(0);
    let port = cluster.add_worker();
    cluster.client.gateway.announce(&cluster.job, &[host_id(0)]);
    assert_eq!(cluster.join(host_id(0), port, 0).status, Status::Ok);
    let service = cluster.workers[0].proc(201);
    let client = &cluster.client.process;
    let serve = |host: ProcUid| {
        assert_eq!(cluster.workers[0].agent.add_served_job(service.uid(), CLIENT), Some(CLIENT));
        client.node.peers.route(service.uid(), host, CLIENT);
        service.node.peers.route(CLIENT, CLIENT, host);
    };
    serve(host_id(0));
    is_answered(client, &service, b"before");
    is_answered(&service, client, b"before");
    end_job(&cluster);
    assert!(client.node.peers.end_of(service.uid()).is_some());
    service.end_of(CLIENT);
    // By its former id, the process stays lost.
    client.node.peers.route(service.uid(), host_id(0), CLIENT);
    assert!(client.node.peers.end_of(service.uid()).is_some());
    cluster.client.gateway.announce(&cluster.job, &[host_id(5)]);
    assert_eq!(cluster.join(host_id(5), port, 0).status, Status::Ok);
    serve(host_id(5));
    for text in [b"again", b"twice"] {
        is_answered(client, &service, text);
        is_answered(&service, client, text);
    }
}

// ---- frames

#[test]
fn call_to_another_host_is_answered() {
    let cluster = Cluster::of(1);
    let (client, proc) = (&cluster.client.process, cluster.proc(0, 201));
    let call = client.call(Mode::Gather, &[proc.uid()]);
    client.send(proc.uid(), call.call_id, &[b"question"]);
    let message = proc.actor().next();
    assert_eq!((message.from, bytes(&message.parts)), (CLIENT, b"question".to_vec()));
    proc.node.replies.send_bytes(message.from, message.call_id, message.rank, Status::Ok, b"answer");
    assert_eq!(bytes(&client.answer(&call, 0).parts), b"answer");
}

/// Fragments of several messages are put together at the other host: each message is whole, and their order is kept.
#[test]
fn large_messages_to_another_host_keep_their_order() {
    let cluster = Cluster::of(1);
    let (sender, receiver) = (cluster.client.proc(101), cluster.proc(0, 201));
    sender.node.peers.route(receiver.uid(), host_id(0), CLIENT);
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    for n in 0..4u8 {
        sender.send(receiver.uid(), CallId::NONE, &[&[n], if n % 2 == 0 { &large } else { b"small" }]);
    }
    let actor = receiver.actor();
    for n in 0..4u8 {
        let message = actor.next();
        let wanted = if n % 2 == 0 { &large[..] } else { b"small" };
        assert!(bytes(&message.parts) == [&[n], wanted].concat(), "message {n}");
    }
}

#[test]
fn frames_to_a_host_wait_for_its_join() {
    let mut cluster = Cluster::of(0);
    let port = cluster.add_worker();
    cluster.client.gateway.announce(&cluster.job, &[host_id(0)]);
    let client = &cluster.client.process;
    let call = client.call(Mode::Gather, &[host_id(0)]);
    client.send(host_id(0), call.call_id, &[b"early"]);
    assert_eq!(cluster.join(host_id(0), port, 0).status, Status::Ok);
    let worker = &cluster.workers[0].process;
    let message = worker.actor().next();
    assert_eq!(bytes(&message.parts), b"early");
}

/// A proc cannot send in the name of another one: its agent drops frames that name another sender.
#[test]
fn forged_sender_is_not_forwarded() {
    let cluster = Cluster::of(1);
    let (forger, receiver) = (cluster.client.proc(101), cluster.proc(0, 201));
    forger.node.peers.route(receiver.uid(), host_id(0), CLIENT);
    let message = Message { dest: BOX, sender: MailboxId(5), method: b"go"[..].into(), ..Message::default() };
    let body = Frame::Message(message).encode();
    for from in [ProcUid(102), CLIENT, forger.uid()] {
        let head = Route { from, from_host: CLIENT, to: receiver.uid(), to_host: host_id(0), seq: 0 };
        let mut frame = Vec::new();
        let at = begin(&mut frame, ROUTED);
        head.put(&mut frame);
        finish(&mut frame, at, body.len());
        forger.node.peers.peer(CLIENT).link.send(&[&frame, &body], vec![]).unwrap();
    }
    let actor = receiver.actor();
    assert_eq!(actor.next().from, forger.uid());
    receiver.settle(&forger);
    assert!(actor.is_idle());
}

/// The frame belongs to a job that is over, or that never existed.
#[test]
fn frame_of_an_unknown_job_is_dropped() {
    let cluster = Cluster::of(1);
    let head = Route { from: CLIENT, from_host: ProcUid(999), to: host_id(0), to_host: host_id(0), seq: 0 };
    let message = Message { dest: BOX, sender: MailboxId(5), method: b"go"[..].into(), ..Message::default() };
    LocalGateway::forward(&*cluster.client.gateway, &head, &[&Frame::Message(message).encode()]);
    let worker = &cluster.workers[0].process;
    worker.settle_as(host_id(0), &cluster.client.process);
    assert!(worker.node.mailboxes.known(BOX).is_none());
}

// ---- ends

/// A port that forwards to `port`. The answer to the first connection is held back until the gate opens.
fn held_back(port: u16) -> (u16, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, (open, gate)) = (listener.local_addr().unwrap().port(), channel::<()>());
    std::thread::spawn(move || {
        let mut gate = Some(gate);
        while let Ok((near, _)) = listener.accept() {
            let remote = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut from, mut to, gate) = (remote.try_clone().unwrap(), near.try_clone().unwrap(), gate.take());
            std::thread::spawn(move || {
                gate.map(|gate| gate.recv());
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let (mut from, mut to) = (near, remote);
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    (own, open)
}

#[test]
fn worker_that_joins_an_ending_client_is_notified() {
    let mut cluster = Cluster::of(0);
    let (port, open) = held_back(cluster.add_worker());
    cluster.client.gateway.announce(&cluster.job, &[host_id(0)]);
    let cell = cluster.client.process.node.calls.start(Mode::Gather, 1, Arc::default());
    cluster.client.gateway.join(&cluster.job, "a test", cluster.wanted(host_id(0), port, 0, 0), cell.call_id, SOON);
    let (client, worker) = (&cluster.client, &cluster.workers[0].process);
    let joined = |e| matches!(e, SystemEvent::Audit(Audit { what: "joined", .. })).then_some(());
    worker.expect(joined);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| client.gateway.close(SOON));
        // The last frame of the client waits for the worker's answer.
        while !closing.is_finished() && cluster.job.host(host_id(0)).unwrap().session.waiting().1 == 0 {
            std::thread::yield_now();
        }
        open.send(()).unwrap();
    });
    let here = worker.expect(|e| if let SystemEvent::JobEnded { here } = e { Some(here) } else { None });
    assert_eq!(here, host_id(0));
    assert!(cluster.workers[0].gateway.jobs().is_empty());
}

/// A port that forwards to `port`, ends its connections, and holds new ones until it is released.
struct Gate {
    port: u16,
    /// The streams of both sides; none while new connections are held.
    open: Mutex<Option<Vec<TcpStream>>>,
    released: Condvar,
}

impl Gate {
    fn start(port: u16) -> Arc<Gate> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let gate = Arc::new(Gate { port: own, open: Mutex::new(Some(vec![])), released: Condvar::new() });
        let me = gate.clone();
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let mut open = me.released.wait_while(me.open.lock().unwrap(), |open| open.is_none()).unwrap();
                // The connection ends where nothing listens.
                let Ok(remote) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                open.as_mut().unwrap().extend([near.try_clone().unwrap(), remote.try_clone().unwrap()]);
                for (mut from, mut to) in [(near.try_clone().unwrap(), remote.try_clone().unwrap()), (remote, near)] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        gate
    }

    fn hold(&self) {
        self.open.lock().unwrap().take().unwrap().iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    fn release(&self) {
        *self.open.lock().unwrap() = Some(vec![]);
        self.released.notify_all();
    }
}

/// A client and a worker whose session has lost its connections, while the client opens others.
fn reopening() -> (Cluster, Arc<Gate>, Process) {
    let mut cluster = Cluster::of(0);
    let gate = Gate::start(cluster.add_worker());
    cluster.client.gateway.announce(&cluster.job, &[host_id(0)]);
    assert_eq!(cluster.join(host_id(0), gate.port, 0).status, Status::Ok);
    let proc = cluster.proc(0, 201);
    let sessions = [session(&cluster.client, host_id(0)), session(&cluster.workers[0], CLIENT)];
    until(|| sessions.iter().all(|s| s.is_up() && s.has_heartbeat()));
    gate.hold();
    until(|| sessions.iter().all(|s| !s.is_up() && !s.has_heartbeat()));
    (cluster, gate, proc)
}

fn session(host: &Host, other: ProcUid) -> Arc<Session> {
    host.gateway.job(CLIENT).unwrap().host(other).unwrap().session.clone()
}

fn until(mut ready: impl FnMut() -> bool) {
    while !ready() {
        std::thread::yield_now();
    }
}

/// Closes a host, and releases the gate when its goodbye waits for a connection.
fn close_before_release(host: &Host, session: &Session, gate: &Gate) {
    std::thread::scope(|scope| {
        let before = session.count();
        let closing = scope.spawn(|| host.gateway.close(SOON));
        until(|| closing.is_finished() || session.count() > before);
        gate.release();
    });
}

#[test]
fn goodbye_of_an_agent_waits_for_a_connection() {
    let (cluster, gate, proc) = reopening();
    let client = &cluster.client.process;
    let call = client.call(Mode::Gather, &[proc.uid()]);
    client.send(proc.uid(), call.call_id, &[b"question"]);
    let worker = &cluster.workers[0];
    close_before_release(worker, &session(worker, CLIENT), &gate);
    assert_eq!(end_of_outcome(&client.answer(&call, 0)).reason, lost("agent exited"));
}

#[test]
fn goodbye_of_a_client_waits_for_a_connection() {
    let (cluster, gate, _proc) = reopening();
    let client = &cluster.client;
    close_before_release(client, &session(client, host_id(0)), &gate);
    let worker = &cluster.workers[0];
    let here = worker.process.expect(|e| if let SystemEvent::JobEnded { here } = e { Some(here) } else { None });
    assert_eq!(here, host_id(0));
    assert!(worker.gateway.jobs().is_empty());
}

#[test]
fn proc_end_fails_calls_from_other_hosts() {
    let cluster = Cluster::of(1);
    let (client, proc) = (&cluster.client.process, cluster.proc(0, 201));
    let call = client.call(Mode::Gather, &[proc.uid()]);
    client.send(proc.uid(), call.call_id, &[b"question"]);
    proc.actor().next();
    cluster.workers[0].agent.kill(proc.uid());
    let outcome = client.answer(&call, 0);
    assert_eq!((outcome.status, end_of_outcome(&outcome).reason), (Status::ProcEnded, killed()));
}

/// The agent of the host answers a frame to a proc that has ended.
#[test]
fn frame_to_an_ended_proc_returns_its_end() {
    let cluster = Cluster::of(1);
    let (late, proc) = (cluster.client.proc(101), cluster.proc(0, 201));
    cluster.workers[0].agent.kill(proc.uid());
    cluster.client.process.end_of(proc.uid());
    late.node.peers.route(proc.uid(), host_id(0), CLIENT);
    let call = late.call(Mode::Gather, &[proc.uid()]);
    late.send(proc.uid(), call.call_id, &[b"too late"]);
    assert_eq!(end_of_outcome(&late.answer(&call, 0)).reason, killed());
}

#[test]
fn agent_that_ends_takes_its_procs_with_it() {
    let cluster = Cluster::of(1);
    let (client, proc) = (&cluster.client.process, cluster.proc(0, 201));
    let call = client.call(Mode::Gather, &[proc.uid()]);
    client.send(proc.uid(), call.call_id, &[b"question"]);
    proc.actor().next();
    cluster.workers[0].gateway.close(SOON);
    assert_eq!(end_of_outcome(&client.answer(&call, 0)).reason, lost("agent exited"));
    assert_eq!(cluster.job.host(host_id(0)).unwrap().lost().as_deref(), Some("agent exited"));
    // A process that was not notified of the end finds a lost host.
    let late = cluster.client.proc(101);
    late.node.peers.route(proc.uid(), host_id(0), CLIENT);
    let call = late.call(Mode::Gather, &[proc.uid()]);
    late.send(proc.uid(), call.call_id, &[b"too late"]);
    assert_eq!(end_of_outcome(&late.answer(&call, 0)).reason, lost("agent exited"));
}

#[test]
fn end_of_the_client_stops_its_procs() {
    let cluster = Cluster::of(1);
    let proc = cluster.proc(0, 201);
    cluster.client.gateway.close(SOON);
    let reason = proc.expect(|e| if let SystemEvent::StopProc { reason, .. } = e { Some(reason) } else { None });
    assert_eq!(reason, "its owner is gone");
    let worker = &cluster.workers[0];
    let here = worker.process.expect(|e| if let SystemEvent::JobEnded { here } = e { Some(here) } else { None });
    assert_eq!(here, host_id(0));
    assert!(worker.gateway.job(CLIENT).is_none());
}

/// The report is about a job that this agent does not take part in, or no longer takes part in.
#[test]
fn notice_of_another_host_ends_no_job() {
    let cluster = Cluster::of(2);
    let worker = &cluster.workers[0];
    let other = &cluster.workers[1].process;
    // Only the client's report ends a host in an agent.
    let news = Control::HostsLost { hosts: vec![(host_id(0), "says another worker".to_owned())] };
    other.node.peers.route(host_id(0), host_id(0), host_id(1));
    other.node.peers.peer(host_id(0)).send_control(news);
    worker.process.settle_as(host_id(0), other);
    assert!(worker.gateway.job(CLIENT).is_some());
}

#[test]
fn procs_are_notified_of_another_workers_end() {
    let cluster = Cluster::of(2);
    let (asker, ended) = (cluster.proc(0, 201), cluster.proc(1, 301));
    asker.node.peers.route(ended.uid(), host_id(1), host_id(0));
    let call = asker.call(Mode::Gather, &[ended.uid()]);
    asker.send(ended.uid(), call.call_id, &[b"question"]);
    ended.actor().next();
    cluster.workers[1].gateway.close(SOON);
    assert_eq!(end_of_outcome(&asker.answer(&call, 0)).reason, lost("agent exited"));
}

#[test]
fn host_without_a_job_is_alone() {
    let host = Host::start(1);
    host.ask_for(CLIENT, &[ProcUid(101)], &ProcPlan::default());
    let proc = host.started();
    assert!(host.gateway.jobs().is_empty());
    assert_eq!((host.agent.job_of(proc.uid()), host.agent.job_of(ProcUid(999))), (Some(CLIENT), None));
}
