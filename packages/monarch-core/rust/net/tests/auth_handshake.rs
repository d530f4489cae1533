//! Properties of every stream, for all kinds of connections and credentials.

mod ends;

use std::io::ErrorKind;

use ends::{HOST, JOB, Wire, all, drive, open, poll, target};
use net::Stream;
use net::trust::{AuthHandshake, Kind, MAX_HELLO, Progress, Subject};

const TOTAL: usize = 64 << 20;

#[test]
fn both_ends_learn_what_they_need() {
    for (name, pair) in all() {
        for (kind, hello) in
            [(Kind::Join, vec![]), (Kind::Channel, vec![3; 100]), (Kind::Channel, vec![9; MAX_HELLO]), (Kind::Join, vec![1])]
        {
            let (a, b) = pair.open(target(kind), &hello);
            let (a, b) = (a.unwrap_or_else(|e| panic!("{name}: {e}")), b.unwrap_or_else(|e| panic!("{name}: {e}")));
            assert_eq!((a.job, b.job), (JOB, JOB), "{name}");
            assert_eq!((a.kind, b.kind), (kind, kind), "{name}");
            assert!(a.hello.is_empty() && b.hello == hello, "{name}");
            let encrypted = name == "site pki" || name == "tls with a secret";
            assert_eq!((a.stream.is_encrypted(), b.stream.is_encrypted()), (encrypted, encrypted), "{name}");
            let subject = match name {
                "tls with a secret" => (Subject::Host(HOST), Subject::Client),
                "site pki" => (Subject::Site("localhost".into()), Subject::Site("localhost".into())),
                _ => (Subject::Unnamed, Subject::Unnamed),
            };
            assert_eq!((&a.subject, &b.subject), (&subject.0, &subject.1), "{name} {kind:?}");
            assert!(a.peer.starts_with("localhost") && b.peer.starts_with("peer"), "{name}");
        }
    }
}

/// Byte `i` of the bytes that one side sends.
fn byte(seed: u8, i: usize) -> u8 {
    (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ seed
}

/// A small generator of lengths; the streams are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// One end that sends and receives at the same time.
struct Half {
    stream: Stream,
    random: Random,
    data: Vec<u8>,
    expected: Vec<u8>,
    sent: usize,
    got: usize,
    flushed: bool,
}

impl Half {
    fn new(stream: Stream, seed: u8, other: u8) -> Half {
        let data = (0..1 << 20).map(|i| byte(seed, i)).collect();
        let expected = (0..1 << 20).map(|i| byte(other, i)).collect();
        Half { stream, random: Random(seed.into()), data, expected, sent: 0, got: 0, flushed: true }
    }

    fn piece(&mut self, at: usize) -> (usize, usize) {
        let longest = [1, 7, 100, 5000, 300_000][self.random.below(5)];
        let from = at % self.data.len();
        (from, from + (1 + self.random.below(longest)).min(self.data.len() - from).min(TOTAL - at))
    }

    /// Sends and receives a little; true if any byte moved.
    fn go(&mut self) -> bool {
        let before = (self.sent, self.got, self.flushed);
        for _ in 0..1 + self.random.below(8) {
            if self.sent == TOTAL {
                break;
            }
            let first = self.piece(self.sent);
            let second = self.piece((self.sent + first.1 - first.0).min(TOTAL - 1));
            let pieces = [
                &self.data[first.0..first.1],
                if first.1 < self.data.len() && self.sent + first.1 - first.0 < TOTAL { &self.data[second.0..second.1] } else { &[] },
            ];
            match self.stream.write(&pieces) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        self.flushed = self.stream.flush().unwrap();
        let mut buf = Vec::new();
        for _ in 0..1 + self.random.below(8) {
            let limit = 1 + self.random.below([3, 1000, 100_000, 1 << 20][self.random.0 as usize % 4]);
            buf.clear();
            match self.stream.read(&mut buf, limit) {
                Ok(0) => panic!("an early end"),
                Ok(n) => {
                    assert!(n == buf.len() && n <= limit);
                    for piece in buf.chunks(1) {
                        assert_eq!(piece[0], self.expected[self.got % self.expected.len()], "byte {}", self.got);
                        self.got += 1;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        before != (self.sent, self.got, self.flushed) || (self.sent == TOTAL && self.got == TOTAL)
    }

    fn is_done(&self) -> bool {
        self.sent == TOTAL && self.got == TOTAL && self.flushed
    }
}

/// In both directions at once, in runs of all sizes, so that each side often blocks the other.
#[test]
fn written_bytes_are_read() {
    for (name, pair) in all() {
        pair.join();
        let (a, b) = pair.channel();
        let (mut a, mut b) = (Half::new(a, 1, 2), Half::new(b, 2, 1));
        while !(a.is_done() && b.is_done()) {
            if !(a.go() | b.go()) {
                poll(&[(a.stream.fd(), a.sent < TOTAL || !a.flushed), (b.stream.fd(), b.sent < TOTAL || !b.flushed)]);
            }
        }
        end_cleanly(name, a.stream, b.stream);
    }
}

fn read_end(stream: &mut Stream) -> std::io::Result<usize> {
    let mut buf = Vec::new();
    loop {
        match stream.read(&mut buf, 1000) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => poll(&[(stream.fd(), false)]),
            other => return other,
        }
    }
}

fn end_cleanly(name: &str, mut a: Stream, mut b: Stream) {
    a.close();
    assert_eq!(read_end(&mut b).unwrap(), 0, "{name}");
    // The other direction is still open.
    assert_eq!(b.write(&[b"last", b" words"]).unwrap(), 10, "{name}");
    b.close();
    let mut buf = Vec::new();
    while buf.len() < 10 {
        match a.read(&mut buf, 100) {
            Ok(n) => assert!(n > 0, "{name}"),
            Err(e) if e.kind() == ErrorKind::WouldBlock => poll(&[(a.fd(), false)]),
            Err(e) => panic!("{name}: {e}"),
        }
    }
    assert_eq!(buf, b"last words", "{name}");
    assert_eq!(read_end(&mut a).unwrap(), 0, "{name}");
}

/// Only an encrypted stream distinguishes a cut from an end, because no third party can end it.
#[test]
fn cut_connection_is_no_orderly_end() {
    for (name, pair) in all() {
        pair.join();
        let (a, mut b) = pair.channel();
        let encrypted = a.is_encrypted();
        drop(a);
        let end = read_end(&mut b);
        if encrypted {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof, "{name}");
        } else {
            assert_eq!(end.unwrap(), 0, "{name}");
        }
    }
}

/// A writer without a reader is stopped: buffers are bounded.
#[test]
fn paused_reader_stops_the_writer() {
    for (name, pair) in all() {
        pair.join();
        let (mut a, mut b) = pair.channel();
        let piece = vec![5; 100_000];
        let mut taken = 0;
        loop {
            match a.write(&[&piece]) {
                Ok(n) => taken += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{name}: {e}"),
            }
            assert!(taken < 64 << 20, "{name}: nothing holds the writer");
        }
        assert_eq!(a.wants_write(), a.is_encrypted(), "{name}");
        let mut buf = Vec::new();
        while buf.len() < taken {
            a.flush().unwrap();
            match b.read(&mut buf, 1 << 20) {
                Ok(n) => assert!(n > 0, "{name}"),
                Err(e) if e.kind() == ErrorKind::WouldBlock => poll(&[(b.fd(), false), (a.fd(), a.wants_write())]),
                Err(e) => panic!("{name}: {e}"),
            }
        }
        assert!(buf.len() == taken && buf.iter().all(|b| *b == 5), "{name}");
        assert_eq!(b.read(&mut buf, 10).unwrap_err().kind(), ErrorKind::WouldBlock, "{name}");
    }
}

/// Bytes that the dialling side sends behind its hello belong to the user of the stream.
#[test]
fn nothing_that_comes_after_the_hello_is_lost() {
    for (name, pair) in all() {
        pair.join();
        let (mut a, mut b) = pair.channel();
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut a, &mut b];
            let [x, y] = ends;
            let (sender, receiver) = if from < to { (x, y) } else { (y, x) };
            assert_eq!(sender.write(&[b"", b"first", b"", b" frame"]).unwrap(), 11, "{name}");
            let mut buf = b"kept ".to_vec();
            while buf.len() < 16 {
                match receiver.read(&mut buf, 3) {
                    Ok(n) => assert!((1..=3).contains(&n), "{name}"),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => poll(&[(receiver.fd(), false)]),
                    Err(e) => panic!("{name}: {e}"),
                }
            }
            assert_eq!(buf, b"kept first frame", "{name}");
        }
    }
}

#[test]
fn agent_dials_other_hosts_of_the_job() {
    for (name, pair) in all() {
        pair.join();
        let trust = pair.host.dial(JOB).unwrap();
        // Here the host dials itself.
        let (a, b) = open(pair.wire, &trust, &pair.host, target(Kind::Channel), b"from a host");
        let (a, b) = (a.unwrap_or_else(|e| panic!("{name}: {e}")), b.unwrap_or_else(|e| panic!("{name}: {e}")));
        assert_eq!((a.job, b.job, &b.hello[..]), (JOB, JOB, &b"from a host"[..]), "{name}");
        if name == "tls with a secret" {
            assert_eq!((a.subject, b.subject), (Subject::Host(HOST), Subject::Host(HOST)));
        }
    }
}

/// A socket that starts to connect.
fn connecting(port: u16) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: a new socket, and an address that outlives the call.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        libc::connect(fd, (&raw const address).cast(), size_of::<libc::sockaddr_in>() as u32);
        std::os::fd::OwnedFd::from_raw_fd(fd)
    }
}

#[test]
fn handshake_waits_for_its_connection() {
    for (name, pair) in all().into_iter().filter(|(_, pair)| pair.wire == Wire::Tcp) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut a = AuthHandshake::dial(connecting(port), &pair.dial, target(Kind::Join), vec![]).unwrap();
        assert!(matches!(a.drive(), Ok(Progress::Pending)), "{name}");
        let b = AuthHandshake::accept(listener.accept().unwrap().0.into(), &pair.host, "peer".into()).unwrap();
        let (a, b) = drive(a, b);
        assert!(a.is_ok() && b.is_ok(), "{name}");

        drop(listener);
        let mut a = AuthHandshake::dial(connecting(port), &pair.dial, target(Kind::Join), vec![]).unwrap();
        let refused = loop {
            match a.drive() {
                Ok(Progress::Pending) => poll(&[(a.fd(), a.wants_write())]),
                Ok(Progress::Done(_)) => panic!("{name}: there was no peer"),
                Err(refused) => break refused,
            }
        };
        assert!(refused.is_transient(), "{name}: {refused}");
    }
}
