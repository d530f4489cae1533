//! The cost of a stream, plain and encrypted: processor time per byte of each end, and per small frame.
//!
//! Processor time, not the clock, so that a busy machine changes little: `cargo test --release -p monarch-net --test trust -- --ignored
//! --nocapture`

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use net::Stream;
use net::trust::{AuthHandshake, DialTrust, HostTrust, JobId, Kind, Opened, Policy, Progress, Secret, Target};

const TOTAL: usize = 4 << 30;
const ROUNDS: u32 = 50_000;

/// Seconds of processor time of this thread.
fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn wait(fd: RawFd, events: i16) {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry that outlives the call.
    unsafe { libc::poll(&mut polled, 1, -1) };
}

fn sockets(tcp: bool) -> (OwnedFd, OwnedFd) {
    if !tcp {
        return net::sys::socketpair().unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    a.set_nodelay(true).unwrap();
    b.set_nodelay(true).unwrap();
    (a.into(), b.into())
}

fn connect(tcp: bool, policy: &Policy) -> (Stream, Stream) {
    let dial = Arc::new(DialTrust::new_client(JobId(1), policy.clone()).unwrap());
    let host = Arc::new(HostTrust::new(policy.clone()).unwrap());
    open(tcp, &dial, &host, Kind::Join);
    open(tcp, &dial, &host, Kind::Channel)
}

fn open(tcp: bool, dial: &Arc<DialTrust>, host: &Arc<HostTrust>, kind: Kind) -> (Stream, Stream) {
    let (a, b) = sockets(tcp);
    let mut a = AuthHandshake::dial(a, dial, Target { kind, host: 1, name: "localhost".into() }, vec![]).unwrap();
    let mut b = AuthHandshake::accept(b, host, "peer".into()).unwrap();
    let (mut x, mut y): (Option<Opened>, Option<Opened>) = (None, None);
    while x.is_none() || y.is_none() {
        for (end, open) in [(&mut a, &mut x), (&mut b, &mut y)] {
            if open.is_none()
                && let Progress::Done(opened) = end.drive().unwrap()
            {
                *open = Some(opened);
            }
        }
    }
    (x.unwrap().stream, y.unwrap().stream)
}

/// Writes all bytes, blocking.
fn write_all(stream: &mut Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(&[bytes]) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(stream.fd(), libc::POLLOUT),
            Err(e) => panic!("{e}"),
        }
    }
    while !stream.flush().unwrap() {
        wait(stream.fd(), libc::POLLOUT);
    }
}

fn read_some(stream: &mut Stream, buf: &mut Vec<u8>, limit: usize) -> usize {
    loop {
        match stream.read(buf, limit) {
            Ok(n) => return n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(stream.fd(), libc::POLLIN),
            Err(e) => panic!("{e}"),
        }
    }
}

fn throughput(name: &str, (mut a, mut b): (Stream, Stream)) {
    let clock = Instant::now();
    let sender = std::thread::spawn(move || {
        let piece = vec![7u8; 1 << 20];
        let start = cpu();
        for _ in 0..TOTAL / piece.len() {
            write_all(&mut a, &piece);
        }
        (cpu() - start, a)
    });
    let start = cpu();
    let (mut got, mut buf) = (0, Vec::with_capacity(1 << 20));
    while got < TOTAL {
        buf.clear();
        got += read_some(&mut b, &mut buf, 1 << 19);
    }
    let receiving = cpu() - start;
    let sending = sender.join().unwrap().0;
    let rate = |seconds: f64| TOTAL as f64 / seconds / 1e9;
    println!(
        "{name:24} {:6.2} GB/s per core sending, {:6.2} receiving; {:6.2} by the clock",
        rate(sending),
        rate(receiving),
        rate(clock.elapsed().as_secs_f64())
    );
}

fn pass(from: &mut Stream, to: &mut Stream, frame: &[u8]) {
    write_all(from, frame);
    let mut buf = Vec::with_capacity(frame.len());
    while buf.len() < frame.len() {
        read_some(to, &mut buf, 64 * 1024);
    }
}

/// One thread plays both ends, so the figure contains no wake-up.
fn small_frames(name: &str, (mut a, mut b): (Stream, Stream)) {
    for size in [64, 1024, 16 * 1024] {
        let frame = vec![1u8; size];
        let mut best = f64::MAX;
        for _ in 0..5 {
            let start = cpu();
            for _ in 0..ROUNDS / 5 {
                pass(&mut a, &mut b, &frame);
                pass(&mut b, &mut a, &frame);
            }
            best = best.min((cpu() - start) / f64::from(ROUNDS / 5 * 2) * 1e6);
        }
        println!("{name:24} {best:6.2} us per frame of {size} bytes, written and read");
    }
}

#[test]
#[ignore = "takes a while and prints what it measures"]
fn stream_costs_are_measured() {
    let secret = Policy::Secret(Secret::from_bytes(&[1; 32]).unwrap());
    for tcp in [false, true] {
        let wire = if tcp { "tcp" } else { "socket pair" };
        for (kind, policy) in [("plain", &Policy::Insecure), ("tls", &secret)] {
            throughput(&format!("{wire}, {kind}"), connect(tcp, policy));
        }
    }
    for (kind, policy) in [("plain", &Policy::Insecure), ("tls", &secret)] {
        small_frames(&format!("tcp, {kind}"), connect(true, policy));
    }
    let (dial, host) = (DialTrust::new_client(JobId(1), secret.clone()).unwrap(), HostTrust::new(secret).unwrap());
    let (dial, host) = (Arc::new(dial), Arc::new(host));
    for kind in [Kind::Join, Kind::Channel] {
        let start = cpu();
        for _ in 0..200 {
            open(true, &dial, &host, kind);
        }
        println!("{kind:?}: {:.2} ms of both ends together", (cpu() - start) / 200.0 * 1e3);
    }
}
