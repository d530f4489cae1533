//! Frames arrive whole and in order, and a link ends once.

mod side;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use net::sys;
use proptest::prelude::*;
use side::{Got, Side, connected, settle};
use wire::Frame;

/// Descriptor count, thread, number, and bytes that show whether the frame is whole.
fn body(fds: u8, thread: u8, n: u32) -> Vec<u8> {
    let mut out = vec![fds, thread];
    out.extend(n.to_le_bytes());
    out.extend((0..n as usize * 131 % 30_000).map(|i| (i as u32 * 31 + n) as u8));
    out
}

fn number(body: &[u8]) -> u32 {
    u32::from_le_bytes(body[2..6].try_into().unwrap())
}

/// The reading end of a pipe that contains the number.
fn marked(n: u32) -> std::os::fd::OwnedFd {
    let (read, write) = sys::pipe().unwrap();
    std::io::Write::write_all(&mut std::fs::File::from(write), &n.to_le_bytes()).unwrap();
    read
}

fn mark(fd: std::os::fd::OwnedFd) -> u32 {
    let mut out = [0; 4];
    std::io::Read::read_exact(&mut std::fs::File::from(fd), &mut out).unwrap();
    u32::from_le_bytes(out)
}

/// Several threads fill a socket that no thread reads; then it is read.
#[test]
fn full_socket_keeps_frames_whole_and_ordered() {
    const EACH: u32 = 300;
    let (mut a, mut b) = (Side::new(), Side::new());
    let (x, y) = sys::socketpair().unwrap();
    a.link.attach(x).unwrap();
    b.link.attach(y).unwrap();
    a.start();
    let threads: Vec<_> = (0..4u8)
        .map(|t| {
            let link = a.link.clone();
            std::thread::spawn(move || {
                for n in 0..EACH {
                    let fds = if n % 50 == 7 { vec![marked(n)] } else { vec![] };
                    let frame = Frame::Raw(body(fds.len() as u8, t, n).into()).encode();
                    // In several slices, so that a partial write may end anywhere.
                    let cut = frame.len() / 3;
                    link.send(&[&frame[..cut], &frame[cut..2 * cut], &frame[2 * cut..]], fds).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(a.link.queued() > 0, "the socket should be full");
    b.start();
    let mut next = [0u32; 4];
    for _ in 0..4 * EACH {
        let (got, fds) = b.next_raw();
        let thread = got[1] as usize;
        let n = next[thread];
        assert_eq!(number(&got), n);
        assert!(got == body(got[0], thread as u8, n));
        assert_eq!(fds.len(), usize::from(n % 50 == 7));
        fds.into_iter().for_each(|fd| assert_eq!(mark(fd), n));
        next[thread] += 1;
    }
    settle(&a, &b);
    assert_eq!(a.link.queued(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any number of slices of any size form one frame.
    #[test]
    fn pieces_are_joined(pieces in proptest::collection::vec(0usize..40_000, 1..40)) {
        let (a, b) = connected();
        let pieces: Vec<Vec<u8>> = pieces.iter().enumerate().map(|(i, n)| vec![i as u8; *n]).collect();
        let whole = pieces.concat();
        let mut head = Vec::new();
        let at = wire::frame::begin(&mut head, wire::frame::RAW);
        head.push(0);
        wire::frame::finish(&mut head, at, whole.len());
        let mut all: Vec<&[u8]> = vec![&head];
        all.extend(pieces.iter().map(|p| &p[..]));
        a.link.send(&all, Vec::new()).unwrap();
        let (got, _) = b.next_raw();
        prop_assert!(got[1..] == whole);
        settle(&a, &b);
    }
}

#[test]
fn frames_sent_before_attachment_wait_for_the_socket() {
    let (mut a, mut b) = (Side::new(), Side::new());
    for n in 0..400 {
        let fds = if n == 40 { vec![marked(n)] } else { vec![] };
        a.send_raw(&body(fds.len() as u8, 0, n), fds);
    }
    assert!(a.link.queued() > 0 && !a.link.is_attached());
    let (x, y) = sys::socketpair().unwrap();
    b.link.attach(y).unwrap();
    a.start();
    a.link.attach(x).unwrap();
    assert!(a.link.is_attached());
    assert!(a.link.queued() > 0, "more than the socket holds");
    b.start();
    for n in 0..400 {
        let (got, fds) = b.next_raw();
        assert!(got == body(u8::from(n == 40), 0, n));
        fds.into_iter().for_each(|fd| assert_eq!(mark(fd), n));
    }
}

/// Small messages may be held back for later ones, but not for ever, and no message overtakes them.
#[test]
fn frames_sent_soon_stay_in_order() {
    let (a, b) = connected();
    for n in 0..600 {
        let frame = Frame::Raw(body(0, 0, n).into()).encode();
        match n % 7 {
            0 => a.link.send(&[&frame], Vec::new()).unwrap(),
            _ => a.link.send_soon(&[&frame]).unwrap(),
        }
    }
    // The sender does not wait on its poller: the I/O thread sends the rest.
    (0..600).for_each(|n| assert!(b.next_raw().0 == body(0, 0, n)));
}

/// A pending release waits for any waiting thread; a small message behind it does not.
#[test]
fn frame_sent_soon_does_not_wait_for_releases() {
    let (a, b) = connected();
    for n in 0..50 {
        let frame = Frame::Raw(body(0, 0, 0).into()).encode();
        a.link.send_soon(&[&frame]).unwrap();
        a.link.release(wire::BlockId { segment: 1, offset: n }, 1);
        a.link.send_soon(&[&frame]).unwrap();
        // The sender does not wait on its poller: the I/O thread sends the rest.
        (0..2).for_each(|_| assert!(b.next_raw().0 == body(0, 0, 0)));
    }
}

/// Held-back messages are sent before a thread waits.
#[test]
fn pending_frames_are_sent_before_a_wait() {
    let (a, b) = connected();
    (0..50).for_each(|n| a.link.send_soon(&[&Frame::Raw(body(0, 0, n % 2).into()).encode()]).unwrap());
    a.poller.flush_pending();
    (0..50).for_each(|n| assert_eq!(number(&b.next_raw().0), n % 2));
}

#[test]
fn end_of_the_stream_closes_the_link_once() {
    let (a, b) = connected();
    a.send_raw(&body(0, 0, 1), Vec::new());
    a.link.close();
    a.link.close();
    assert!(matches!(a.next(), Got::Down));
    assert!(a.got.try_recv().is_err(), "told once");
    assert_eq!(number(&b.next_raw().0), 1);
    assert!(matches!(b.next(), Got::Down));
    assert!(b.link.is_down());
    assert_eq!(b.link.send(&[&Frame::Raw(Box::default()).encode()], Vec::new()), Err(net::LinkDown));
}

#[test]
fn malformed_frame_closes_the_link() {
    let (a, b) = connected();
    a.link.send(&[&[1, 0, 0, 0, 99]], Vec::new()).unwrap();
    assert!(matches!(b.next(), Got::Down));
    assert!(matches!(a.next(), Got::Down));
}

#[test]
fn closed_link_keeps_no_descriptor() {
    let (mut a, b) = (Side::new(), Side::new());
    let (x, _y) = sys::socketpair().unwrap();
    let socket = std::fs::read_link(format!("/proc/self/fd/{}", x.as_raw_fd())).unwrap();
    let open = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        fds.filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to == socket)).count()
    };
    a.link.attach(x).unwrap();
    a.start();
    assert_eq!(open(), 1);
    a.link.close();
    a.poller.clone().spawn_and_join();
    assert_eq!(open(), 0);
    drop(b);
}

#[test]
fn closed_link_takes_no_socket() {
    let mut a = Side::new();
    a.start();
    a.link.close();
    let (x, y) = sys::socketpair().unwrap();
    a.link.attach(x).unwrap();
    assert!(!a.link.is_attached());
    // The other end was dropped, so this end reads the end of the stream.
    assert_eq!(sys::read(y.as_raw_fd(), &mut [0; 1]).unwrap(), 0);
}

/// As it refuses all plain files.
#[test]
fn unwatched_socket_is_closed() {
    let mut a = Side::new();
    a.start();
    let refused = || OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert_eq!(a.link.attach(refused()).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert!(!a.link.is_attached());
    let (x, y) = sys::socketpair().unwrap();
    a.link.attach(x).unwrap();
    assert!(a.link.attach(refused()).is_err(), "a second one too");
    sys::send(y.as_raw_fd(), &[&Frame::Raw(body(0, 0, 1).into()).encode()], &[]).unwrap();
    assert_eq!(number(&a.next_raw().0), 1);
}

#[test]
fn draining_reads_all_that_was_sent() {
    let (mut a, b) = (Side::new(), Side::new());
    let (x, y) = sys::socketpair().unwrap();
    a.link.attach(x).unwrap();
    b.link.attach(y).unwrap();
    a.start();
    for n in 0..20 {
        a.send_raw(&body(0, 0, n), Vec::new());
    }
    // Only this thread reads `b`.
    let mut seen = 0;
    while seen < 20 {
        b.link.drain();
        while let Ok(Got::Frame(Frame::Raw(got), _)) = b.got.try_recv() {
            assert_eq!(number(&got), seen);
            seen += 1;
        }
    }
    b.link.close();
    b.link.drain();
}

/// Each side has opened a socket before it gets the socket of the other side.
#[test]
fn sides_that_connect_at_once_stay_connected() {
    let (mut a, mut b) = (Side::new(), Side::new());
    let ((x, y), (z, w)) = (sys::socketpair().unwrap(), sys::socketpair().unwrap());
    a.link.attach(x).unwrap();
    b.link.attach(w).unwrap();
    b.link.attach(y).unwrap();
    a.link.attach(z).unwrap();
    a.start();
    b.start();
    for n in 0..20 {
        a.send_raw(&body(0, 0, n), Vec::new());
        b.send_raw(&body(0, 0, n), Vec::new());
    }
    for n in 0..20 {
        assert_eq!((number(&a.next_raw().0), number(&b.next_raw().0)), (n, n));
    }
    a.send_raw(&body(0, 0, 20), Vec::new());
    a.link.close();
    assert_eq!(number(&b.next_raw().0), 20, "the last frame precedes the end");
    assert!(matches!(b.next(), Got::Down));
}

/// One process has opened two sockets at once, and the other one gets them in the other order.
#[test]
fn sockets_may_arrive_in_any_order() {
    let (mut a, mut b) = (Side::new(), Side::new());
    let ((x, y), (z, w)) = (sys::socketpair().unwrap(), sys::socketpair().unwrap());
    a.link.attach(x).unwrap();
    a.link.attach(z).unwrap();
    b.link.attach(w).unwrap();
    b.link.attach(y).unwrap();
    a.start();
    b.start();
    a.send_raw(&body(0, 0, 1), Vec::new());
    b.send_raw(&body(0, 0, 2), Vec::new());
    assert_eq!((number(&a.next_raw().0), number(&b.next_raw().0)), (2, 1));
    b.link.close();
    assert!(matches!(a.next(), Got::Down));
}

trait SpawnAndJoin {
    fn spawn_and_join(self);
}

impl SpawnAndJoin for Arc<net::Poller> {
    /// Waits until the I/O thread has finished its current work.
    fn spawn_and_join(self) {
        let (tx, rx) = std::sync::mpsc::channel();
        self.spawn(Box::new(move || tx.send(()).unwrap()));
        rx.recv_timeout(side::HANG).unwrap();
    }
}
