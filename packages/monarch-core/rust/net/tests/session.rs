//! Frames of a session whose stream is replaced: each arrives once.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::channel::Disagree;
use net::session::{Session, SessionHandler, StreamEnd};
use net::stream::Stream;
use wire::ProcUid;
use wire::greeting::Heartbeat;

use running::Running;

mod running;

/// Time after which a test that hangs fails. No step takes long.
const HANG: Duration = Duration::from_secs(30);
const KIND: u8 = 99;
/// Sent to the test when the kernel does not watch a connection.
const UNWATCHED: u64 = u64::MAX;

/// Forwards the number in each frame to the test.
struct Numbers(Mutex<Sender<u64>>);

impl SessionHandler for Numbers {
    fn frame(&self, _session: &Arc<Session>, frame: &[u8]) {
        assert_eq!(frame[0], KIND);
        let _ = self.0.lock().unwrap().send(u64::from_le_bytes(frame[1..].try_into().unwrap()));
    }

    fn heartbeat(&self, _session: &Arc<Session>, _heartbeat: Heartbeat) {}
    fn bytes_received(&self, _session: &Arc<Session>) {}
    fn broken(&self, _session: &Arc<Session>, _number: u8, _end: StreamEnd) {}

    fn unwatched(&self, _session: &Arc<Session>, why: std::io::Error) {
        assert_eq!(why.raw_os_error(), Some(libc::EPERM));
        let _ = self.0.lock().unwrap().send(UNWATCHED);
    }
}

struct End {
    session: Arc<Session>,
    got: Receiver<u64>,
    _running: Running,
}

impl End {
    fn new(local_host: u64, there: u64) -> End {
        let running = Running::new();
        let (tx, got) = channel();
        let session = Session::new(ProcUid(9), ProcUid(local_host), ProcUid(there), running.0.clone(), Arc::new(Numbers(Mutex::new(tx))));
        End { session, got, _running: running }
    }

    fn send(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let frame = [&9_u32.to_le_bytes()[..], &[KIND], &number.to_le_bytes()].concat();
            self.session.send(&[&frame]).unwrap();
        }
    }

    fn next(&self, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            assert_eq!(self.got.recv_timeout(HANG), Ok(number));
        }
    }
}

fn pair() -> (Stream, Stream) {
    let (x, y) = UnixStream::pair().unwrap();
    for end in [&x, &y] {
        end.set_nonblocking(true).unwrap();
    }
    (Stream::plain(OwnedFd::from(x)), Stream::plain(OwnedFd::from(y)))
}

/// The greetings of a stream that `a` opens: `a` reports its count of received frames; `b` attaches the stream and answers with its own
/// count.
fn join(a: &End, b: &End, reported: u64) -> Result<(), Disagree> {
    let (x, y) = pair();
    let own = b.session.received();
    b.session.attach(y, own, reported, &[], Vec::new())?;
    a.session.attach(x, reported, own, &[], Vec::new())
}

#[test]
fn frames_go_on_with_another_stream() {
    let (a, b) = (End::new(1, 2), End::new(2, 1));
    b.send(0..5);
    join(&a, &b, 0).unwrap();
    a.next(0..=4);
    for turn in 1..4 {
        a.session.detach();
        b.session.detach();
        let (from, to) = (5 * turn, 5 * turn + 5);
        b.send(from..to);
        a.send(from..to);
        join(&a, &b, a.session.received()).unwrap();
        a.next(from..=to - 1);
        b.next(from..=to - 1);
    }
}

/// Two handshakes for a new stream run at once and have reported the same count. With the first stream, frames arrive before the second
/// stream is attached, on which the other side would send them again.
#[test]
fn stream_whose_claim_is_outdated_is_not_taken() {
    let (a, b) = (End::new(1, 2), End::new(2, 1));
    let reported = a.session.received();
    b.send(0..13);
    join(&a, &b, reported).unwrap();
    a.next(0..=12);
    assert_eq!(join(&a, &b, reported), Err(Disagree::Stale));
    assert_eq!(a.session.received(), 13);
    // The next handshake reports the new count, and both sides agree.
    a.session.detach();
    b.send(13..20);
    join(&a, &b, a.session.received()).unwrap();
    a.next(13..=19);
    assert_eq!(a.session.received(), 20);
    assert!(a.got.try_recv().is_err());
}

/// The same check on the side that answers.
#[test]
fn answer_that_is_outdated_is_not_given() {
    let (a, b) = (End::new(1, 2), End::new(2, 1));
    let own = b.session.received();
    join(&a, &b, 0).unwrap();
    a.send(0..3);
    b.next(0..=2);
    let (_x, y) = pair();
    assert_eq!(b.session.attach(y, own, 0, &[], Vec::new()), Err(Disagree::Stale));
    a.send(3..6);
    b.next(3..=5);
}

#[test]
fn more_than_was_sent_cannot_have_been_received() {
    let (a, b) = (End::new(1, 2), End::new(2, 1));
    b.send(0..3);
    let (_x, y) = pair();
    assert_eq!(b.session.attach(y, 0, 4, &[], Vec::new()), Err(Disagree::Ahead));
    join(&a, &b, 0).unwrap();
    a.next(0..=2);
}

/// A stream that epoll refuses, as it refuses all plain files.
fn refused_by_epoll() -> Stream {
    Stream::plain(OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap()))
}

#[test]
fn connection_that_is_not_watched_is_reported() {
    let a = End::new(1, 2);
    a.session.attach(refused_by_epoll(), 0, 0, &[], Vec::new()).unwrap();
    a.next(UNWATCHED..=UNWATCHED);
    assert!(!a.session.is_up(), "frames wait for the next connection");
    a.session.attach_heartbeat(refused_by_epoll(), &[], Vec::new());
    a.next(UNWATCHED..=UNWATCHED);
    assert!(!a.session.has_heartbeat());
}

#[test]
fn connection_that_is_not_watched_replaces_none() {
    let (a, b) = (End::new(1, 2), End::new(2, 1));
    join(&a, &b, 0).unwrap();
    a.session.attach(refused_by_epoll(), 0, 0, &[], Vec::new()).unwrap();
    a.next(UNWATCHED..=UNWATCHED);
    b.send(0..5);
    a.next(0..=4);
}

#[test]
fn paused_session_reports_connection_that_is_not_watched() {
    let a = End::new(1, 2);
    let ((x, _x), (y, _y)) = (pair(), pair());
    let numbers = [x.fd(), y.fd()];
    a.session.attach(x, 0, 0, &[], Vec::new()).unwrap();
    a.session.attach_heartbeat(y, &[], Vec::new());
    a.session.begin_pause();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    numbers.iter().for_each(|number| net::sys::replace(*number, file.as_raw_fd()));
    a.session.end_pause();
    a.next(UNWATCHED..=UNWATCHED);
    a.next(UNWATCHED..=UNWATCHED);
    assert!(!a.session.is_up() && !a.session.has_heartbeat());
}
