//! Streams for bulk data between processes of two hosts: the owner of each end, and the reasons why a stream is refused.
#![cfg(not(feature = "shuttle"))]

mod hosts;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hosts::{CLIENT, Cluster, Host, Process, host_id};
use runtime::Node;
use runtime::streams::{BulkError, BulkStream};
use wire::control::PipeFrame;
use wire::{Control, Frame, ProcUid};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// The streams over which other processes send requests to this one.
fn receive_streams(process: &Process) -> Receiver<(ProcUid, BulkStream)> {
    let (give, taken) = channel();
    process.node.streams.set_receiver(Box::new(move |peer, stream| drop(give.send((peer, stream)))));
    taken
}

fn next(taken: &Receiver<(ProcUid, BulkStream)>) -> (ProcUid, BulkStream) {
    taken.recv_timeout(Duration::from_secs(30)).unwrap()
}

/// The stream is blocking: the test that reads and writes it does nothing else at the time.
fn socket(stream: BulkStream) -> UnixStream {
    let stream = UnixStream::from(stream.fd);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn refused(result: Result<BulkStream, BulkError>) -> BulkError {
    result.err().expect("no stream")
}

/// A proc of the client's host and one of a worker; each has the route to the other one.
fn two_procs(cluster: &Cluster) -> (Process, Process) {
    let (near, far) = (cluster.client.proc(101), cluster.proc(0, 201));
    near.node.peers.route(far.uid(), host_id(0), CLIENT);
    far.node.peers.route(near.uid(), CLIENT, host_id(0));
    (near, far)
}

fn passes_bytes(mut asker: UnixStream, mut answerer: UnixStream) {
    asker.write_all(b"question").unwrap();
    let mut got = [0; 8];
    answerer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"question");
    answerer.write_all(b"answer").unwrap();
    drop(answerer);
    let mut rest = Vec::new();
    asker.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"answer");
}

#[test]
fn both_processes_get_an_end() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    let taken = receive_streams(&far);
    let stream = near.node.streams.open(far.uid(), soon(), false).unwrap();
    let (peer, theirs) = next(&taken);
    assert_eq!((peer, stream.dialled, theirs.dialled), (near.uid(), true, false));
    assert!(!stream.is_routed && stream.keys.is_none() && theirs.keys.is_none());
    passes_bytes(socket(stream), socket(theirs));
}

/// A client never listens: it dials when a stream to one of its processes is requested.
#[test]
fn client_dials_when_its_proc_is_wanted() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    let taken = receive_streams(&near);
    let stream = far.node.streams.open(near.uid(), soon(), false).unwrap();
    let (peer, theirs) = next(&taken);
    assert_eq!((peer, stream.dialled, theirs.dialled), (far.uid(), false, true));
    passes_bytes(socket(stream), socket(theirs));
}

#[test]
fn workers_dial_each_other() {
    let cluster = Cluster::of(2);
    let (asker, answerer) = (cluster.proc(0, 201), cluster.proc(1, 301));
    asker.node.peers.route(answerer.uid(), host_id(1), host_id(0));
    let taken = receive_streams(&answerer);
    // The client has sent each of the two agents the address of the other one before.
    cluster.workers[0].process.settle_as(host_id(0), &cluster.client.process);
    let stream = asker.node.streams.open(answerer.uid(), soon(), false).unwrap();
    passes_bytes(socket(stream), socket(next(&taken).1));
}

// ---- no stream

#[test]
fn process_on_no_known_host_is_unreachable() {
    let host = Host::start(1);
    let proc = host.proc(101);
    let why = BulkError::Unreachable("it is not known on which host the process is".to_owned());
    assert_eq!(refused(proc.node.streams.open(ProcUid(999), soon(), false)), why);
}

/// The agent has no job with such a host.
#[test]
fn agent_refuses_a_host_of_another_job() {
    let cluster = Cluster::of(1);
    let proc = cluster.client.proc(101);
    proc.node.peers.route(ProcUid(901), ProcUid(900), CLIENT);
    let why = BulkError::Unreachable("it is not known on which host the process is".to_owned());
    assert_eq!(refused(proc.node.streams.open(ProcUid(901), soon(), false)), why);
}

#[test]
fn ended_process_gets_no_stream() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    cluster.workers[0].agent.kill(far.uid());
    // The worker's agent knows of the end. `near` does not: it has sent nothing to the proc.
    cluster.client.process.end_of(far.uid());
    assert!(!near.node.peers.has_ended(far.uid()));
    // The refusal and the report of the end take different routes: either may arrive first.
    let gone = BulkError::Unreachable("the process is not there any more".to_owned());
    let why = refused(near.node.streams.open(far.uid(), soon(), false));
    assert!(why == BulkError::Ended || why == gone, "{why:?}");
    near.end_of(far.uid());
    assert_eq!(refused(near.node.streams.open(far.uid(), soon(), false)), BulkError::Ended, "without asking again");
}

#[test]
fn ended_proc_of_the_client_gets_no_stream() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    cluster.client.agent.kill(near.uid());
    cluster.client.process.end_of(near.uid());
    // The client sends the report of the end before the refusal, and both take the same route.
    assert_eq!(refused(far.node.streams.open(near.uid(), soon(), false)), BulkError::Ended);
}

#[test]
fn process_of_a_lost_host_has_ended() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    cluster.workers[0].gateway.close(Duration::from_secs(30));
    near.node.peers.peer(far.uid());
    cluster.client.process.end_of(host_id(0));
    // Its agent answers with the end of the host.
    near.node.peers.peer(far.uid()).link.send(&[], vec![]).unwrap();
    near.ends();
    assert_eq!(refused(near.node.streams.open(far.uid(), soon(), false)), BulkError::Ended);
}

/// While a test cuts the host off, no stream to it is opened.
#[test]
fn call_for_a_stream_times_out() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    let taken = receive_streams(&far);
    cluster.client.gateway.cut_off(&[host_id(0)], &[]);
    let now = Instant::now();
    assert_eq!(refused(near.node.streams.open(far.uid(), now, false)), BulkError::TimedOut);
    // The stream that arrives late has no owner: its other end sees that it is closed.
    cluster.client.gateway.cut_off(&[], &[]);
    let (_, late) = next(&taken);
    assert_eq!(socket(late).read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn paused_host_pauses_its_streams() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    let _taken = receive_streams(&far);
    let stream = near.node.streams.open(far.uid(), soon(), false).unwrap();
    let is_paused = || stream.paused.load(std::sync::atomic::Ordering::Relaxed);
    assert!(!is_paused());
    near.node.streams.cut_off(&HashSet::from([host_id(0)]));
    assert!(is_paused());
    near.node.streams.cut_off(&HashSet::new());
    assert!(!is_paused());
}

/// The descriptor was lost because the receiving kernel had none left.
#[test]
fn stream_without_a_descriptor_is_refused() {
    let (a, b) = net::sys::socketpair().unwrap();
    // In the place of an agent, a process that sends the frames of this test.
    let [node, agent] = [ProcUid(101), CLIENT].map(|uid| Node::start(uid, CLIENT).unwrap());
    node.peers.peer_unlinked(CLIENT).0.link.attach(a).unwrap();
    let link = agent.peers.peer_unlinked(node.uid).0.link.clone();
    link.attach(b).unwrap();
    node.peers.route(ProcUid(901), ProcUid(900), CLIENT);
    let answer =
        Control::BulkStream { number: 1, peer: ProcUid(901), host: ProcUid(900), here: CLIENT, serves: true, dialled: true, keys: vec![] };
    let asker = std::thread::spawn({
        let node = node.clone();
        move || node.streams.open(ProcUid(901), soon(), false)
    });
    while !asker.is_finished() {
        link.send(&[&Frame::Control(answer.clone()).encode()], vec![]).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(refused(asker.join().unwrap()), BulkError::Unreachable("no descriptors are left".to_owned()));
    [node, agent].iter().for_each(|n| {
        n.peers.all().iter().for_each(|p| p.link.close());
        n.poller.stop();
    });
}

/// A process accepts streams only from its own agent.
#[test]
fn stream_of_another_proc_is_refused() {
    let host = Host::start(1);
    let (proc, other_proc) = (host.proc(101), host.proc(102));
    let taken = receive_streams(&proc);
    let claim = |serves| Control::BulkStream {
        number: 1,
        peer: other_proc.uid(),
        host: ProcUid(900),
        here: CLIENT,
        serves,
        dialled: false,
        keys: vec![],
    };
    for serves in [true, false] {
        let (end, _) = net::sys::socketpair().unwrap();
        let frame = Frame::Control(claim(serves)).encode();
        other_proc.node.peers.peer(proc.uid()).link.send(&[&frame], vec![end]).unwrap();
    }
    proc.settle(&other_proc);
    assert!(taken.try_recv().is_err());
}

// ---- by messages

#[test]
fn stream_by_messages_passes_bytes() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    let taken = receive_streams(&far);
    near.node.peers.peer(far.uid()).send_control(Control::BulkPipe { number: 9, by_sender: true, what: PipeFrame::Open });
    let (peer, theirs) = next(&taken);
    assert_eq!((peer, theirs.is_routed), (near.uid(), true));
    let mut theirs = socket(theirs);
    near.node.peers.peer(far.uid()).send_control(Control::BulkPipe {
        number: 9,
        by_sender: true,
        what: PipeFrame::Bytes(b"question".to_vec()),
    });
    let mut got = [0; 8];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"question");
    near.node.peers.peer(far.uid()).send_control(Control::BulkPipe { number: 9, by_sender: true, what: PipeFrame::Close });
    assert_eq!(theirs.read(&mut got).unwrap(), 0);
}

#[test]
fn stream_by_messages_ends_with_its_process() {
    let cluster = Cluster::of(1);
    let (near, far) = two_procs(&cluster);
    let taken = receive_streams(&far);
    near.node.peers.peer(far.uid()).send_control(Control::BulkPipe { number: 9, by_sender: true, what: PipeFrame::Open });
    let mut theirs = socket(next(&taken).1);
    cluster.client.agent.kill(near.uid());
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
}
