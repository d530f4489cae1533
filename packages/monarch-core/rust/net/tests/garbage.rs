//! Input before authentication: no input causes a panic, a hang, or unbounded memory.
//!
//! Every input is a flight of a real handshake with bytes changed, cut, repeated or inserted, and then the end of the stream.
//! `MONARCH_FUZZ_INPUTS` is the total number of inputs; the inputs are the same in every run.

mod ends;
mod rogue;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ends::{HOST, JOB, Paper, Site, secret, target};
use net::trust::{AuthHandshake, Authority, DialTrust, HostTrust, Kind, Lifetime, Opened, Policy, Progress, Refused};
use rogue::*;

const INPUTS: u64 = 200_000;
/// A bound above the need of TLS with its largest message, and of a hello.
const MOST_MEMORY: usize = 512 * 1024;

type Make = Box<dyn Fn(OwnedFd) -> AuthHandshake>;

struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's guarantee holds for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantee holds for the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }

    fn mutate(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len());
            match self.below(10) {
                0..=2 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                3..=4 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                5 => bytes.truncate(at),
                6 => {
                    let piece = self.bytes(64);
                    bytes.splice(at..at, piece);
                }
                7 => {
                    let end = at + self.below(bytes.len() - at);
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                8 => drop(bytes.drain(at..at + self.below(bytes.len() - at))),
                _ if self.below(20) == 0 => bytes = self.bytes(20_000),
                _ => {}
            }
        }
        bytes
    }
}

/// Prints the input of a failed test on drop.
struct Input<'a>(&'a str, u64);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}, input {}", self.0, self.1);
        }
    }
}

/// Drives a handshake whose stream has ended to its result.
fn finish(mut handshake: AuthHandshake) -> Result<Opened, Refused> {
    for _ in 0..100 {
        match handshake.drive() {
            Ok(Progress::Pending) => {}
            Ok(Progress::Done(opened)) => return Ok(opened),
            Err(refused) => return Err(refused),
        }
    }
    panic!("waits for more after the end");
}

fn feed(make: &dyn Fn(OwnedFd) -> AuthHandshake, input: &[u8]) -> Result<Opened, Refused> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let before = USED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    (&ours).write_all(input).unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let result = finish(make(theirs.into()));
    let grown = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(grown < MOST_MEMORY, "{grown} bytes");
    result
}

/// The first bytes that an end sends.
fn first_flight(handshake: &mut AuthHandshake, peer: &mut UnixStream) -> Vec<u8> {
    assert!(matches!(handshake.drive(), Ok(Progress::Pending)));
    let mut bytes = vec![0; 65_536];
    let n = peer.read(&mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

fn dialler(policy: Policy, kind: Kind) -> Make {
    let trust = Arc::new(DialTrust::new_client(JOB, policy).unwrap());
    Box::new(move |fd| AuthHandshake::dial(fd, &trust, target(kind), b"hello".to_vec()).unwrap())
}

fn listener(policy: Policy) -> Make {
    let trust = Arc::new(HostTrust::new(policy).unwrap());
    Box::new(move |fd| AuthHandshake::accept(fd, &trust, "peer".into()).unwrap())
}

#[test]
fn garbage() {
    let inputs = std::env::var("MONARCH_FUZZ_INPUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(INPUTS);
    let site = Site::new();
    let paper = Paper::default();
    let by_secret = || Policy::Secret(secret(1));
    // Name, share of the inputs, the end that receives them, and the valid bytes.
    let mut cases: Vec<(&str, u64, Make, Vec<u8>)> = Vec::new();

    let plain = [release(), request(1, JOB), frame(HELLO, &[7; 200])].concat();
    cases.push(("insecure, accepting", 45, listener(Policy::Insecure), plain.clone()));
    cases.push(("same user, accepting", 10, listener(Policy::SameUser), plain));
    cases.push(("insecure, dialling", 20, dialler(Policy::Insecure, Kind::Join), [release(), frame(WELCOME, &[])].concat()));
    for (name, policy, kind) in
        [("join", by_secret(), Kind::Join), ("channel", by_secret(), Kind::Channel), ("site", site.policy(&paper), Kind::Join)]
    {
        let dial = dialler(policy.clone(), kind);
        let listen = listener(policy);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut handshake = dial(theirs.into());
        let hello = first_flight(&mut handshake, &mut ours);
        if kind == Kind::Join {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(&hello).unwrap();
            let answer = first_flight(&mut listen(theirs.into()), &mut ours);
            cases.push((name, 2, dial, answer));
        }
        cases.push((name, 7, listen, hello));
    }

    let mut open = 0u64;
    let shares: u64 = cases.iter().map(|(_, share, _, _)| share).sum();
    for (name, share, make, good) in &cases {
        for number in 0..inputs * share / shares {
            let _input = Input(name, number);
            let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            open += u64::from(feed(make.as_ref(), &random.mutate(good)).is_ok());
        }
    }
    assert!(open > 0, "some are left as they were, or changed where it does not matter");
    inside_tls(inputs / 200);
}

/// Frames of a join inside a TLS session, from a dialling end that knows the secret or does not.
fn inside_tls(inputs: u64) {
    let host = Arc::new(HostTrust::new(Policy::Secret(secret(1))).unwrap());
    let authority = Authority::new(JOB).unwrap();
    let mut joined = 0;
    for number in 0..inputs {
        let _input = Input("inside tls", number);
        let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut handshake = AuthHandshake::accept(theirs.into(), &host, "peer".into()).unwrap();
        let mut tls = connection("monarch-join/1", &format!("h{HOST:016x}.j{JOB}.monarch.internal"), None);
        let mut refused = false;
        while tls.is_handshaking() || tls.wants_write() {
            turn(&mut tls, &mut ours);
            refused |= handshake.drive().is_err();
        }
        let (out, label, context) = label(JOB);
        let exporter = tls.export_keying_material(out, label, Some(&context)).unwrap();
        let mut body = JOB.0.to_le_bytes().to_vec();
        body.extend_from_slice(&digest(authority.certificate()));
        body.extend_from_slice(&proof(&[1; 32], "dialler", JOB, authority.certificate(), exporter));
        let proof = frame(PROOF, &body);
        // One handshake in four fails here.
        let proof = if number % 4 == 0 { random.mutate(&proof) } else { proof };
        write_all_to(&mut tls.writer(), &proof);
        turn(&mut tls, &mut ours);
        refused |= handshake.drive().is_err();
        turn(&mut tls, &mut ours);
        let mut answer = vec![0; 100];
        if tls.reader().read_exact(&mut answer).is_ok() && answer[2] == ANSWER {
            let issued = authority.host(HOST, &answer[35..], Lifetime::usual()).unwrap();
            let mut body = HOST.to_le_bytes().to_vec();
            body.extend_from_slice(&(issued.len() as u16).to_le_bytes());
            body.extend_from_slice(&issued);
            body.extend_from_slice(authority.certificate());
            let good = [release(), frame(CERTIFICATE, &body), request(1, JOB), frame(HELLO, b"hello")].concat();
            write_all_to(&mut tls.writer(), &random.mutate(&good));
        }
        turn(&mut tls, &mut ours);
        let _ = ours.shutdown(std::net::Shutdown::Write);
        if !refused {
            joined += u64::from(finish(handshake).is_ok());
        }
    }
    assert!(joined > 0);
}

/// Sends the queued bytes and reads the available ones.
fn turn(tls: &mut rustls::ClientConnection, socket: &mut UnixStream) {
    while tls.wants_write() && tls.write_tls(socket).is_ok() {}
    while tls.read_tls(socket).is_ok_and(|n| n > 0) && tls.process_new_packets().is_ok() {}
}
