//! Tunnels: bytes arrive, are bounded on their way, and end as without a tunnel.

mod ends;
mod running;

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ends::{Pair, Wire, connect, drive, poll, secret, target};
use net::splice::Splice;
use net::trust::{AuthHandshake, Kind, Policy};
use net::{Stream, sys};
use running::Running;

struct Tunnel {
    _running: Running,
    splice: Arc<Splice>,
    client: Stream,
    host: Stream,
}

/// The policies of the gateway and of the host: a secret of their own, or none.
fn kinds() -> Vec<(Policy, Policy)> {
    let [a, b] = [1, 2].map(|n| Policy::Secret(secret(n)));
    vec![(a.clone(), b.clone()), (a, Policy::Insecure), (Policy::Insecure, b), (Policy::Insecure, Policy::Insecure)]
}

/// A stream between two ends: both streams, and spare descriptors of the pair.
fn way(policy: &Policy) -> (Stream, Stream, OwnedFd, OwnedFd) {
    let pair = Pair::same(Wire::Tcp, policy.clone());
    pair.join();
    let (near, gateway) = pair.channel();
    let (far, host) = connect(Wire::Tcp);
    sys::set_nonblocking(far.as_raw_fd()).unwrap();
    (near, gateway, far, host)
}

fn tunnel((gateway, host): &(Policy, Policy)) -> Tunnel {
    let running = Running::new();
    let (near, middle, far, end) = way(gateway);
    let splice = Splice::start(&running.0, middle, Stream::plain(far)).unwrap();
    let pair = Pair::same(Wire::Tcp, host.clone());
    pair.join();
    let dialled = AuthHandshake::over(Stream::through(near), &pair.dial, target(Kind::Channel), b"hello".to_vec()).unwrap();
    let (a, b) = drive(dialled, AuthHandshake::accept(end, &pair.host, "peer".into()).unwrap());
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(b.hello, b"hello");
    Tunnel { _running: running, splice, client: a.stream, host: b.stream }
}

/// Sends `data` while the other end reads nothing; returns the number of bytes taken until the socket stayed full for 200 ms.
fn fill(stream: &mut Stream, data: &[u8]) -> usize {
    let mut sent = 0;
    while sent < data.len() {
        match stream.write(&[&data[sent..]]) {
            Ok(n) => sent += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let mut polled = libc::pollfd { fd: stream.fd(), events: libc::POLLOUT, revents: 0 };
                // SAFETY: one entry, which outlives the call.
                if unsafe { libc::poll(&mut polled, 1, 200) } == 0 {
                    return sent;
                }
                stream.flush().unwrap();
            }
            Err(e) => panic!("{e}"),
        }
    }
    sent
}

/// Reads until the end.
fn read_all(from: &mut Stream) -> (Vec<u8>, std::io::Result<()>) {
    let mut got = Vec::new();
    loop {
        match from.read(&mut got, 1 << 16) {
            Ok(0) => return (got, Ok(())),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => poll(&[(from.fd(), false)]),
            Err(e) => return (got, Err(e)),
        }
    }
}

fn finish(stream: &mut Stream) {
    while !stream.flush().unwrap() {
        poll(&[(stream.fd(), true)]);
    }
    stream.close();
}

#[test]
fn spliced_bytes_arrive_with_bounded_buffers() {
    let data: Vec<u8> = (0..64usize << 20).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    for kind in kinds() {
        let Tunnel { _running, splice, mut client, mut host } = tunnel(&kind);
        let first = fill(&mut client, &data);
        assert!(first < data.len(), "{} bytes are somewhere", data.len());
        let (sender, rest) = (&mut client, &data[first..]);
        let got = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_all(&mut host));
            let mut sent = 0;
            while sent < rest.len() {
                sent += fill(sender, &rest[sent..]);
            }
            finish(sender);
            reader.join().unwrap()
        });
        // One direction has ended, as far as the kind of stream can show it; the other continues.
        assert!(got.0 == data, "{} of {} bytes", got.0.len(), data.len());
        let answer = &data[..100_000];
        let mut sent = 0;
        while sent < answer.len() {
            sent += fill(&mut host, &answer[sent..]);
        }
        finish(&mut host);
        assert!(read_all(&mut client).0 == answer);
        drop((client, host));
        while !splice.is_over() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn end_of_a_process_is_seen_as_end() {
    for kind in kinds() {
        let Tunnel { _running, splice: _splice, mut client, host } = tunnel(&kind);
        // The kernel closes the socket, without an announced end.
        drop(host);
        let end = read_all(&mut client).1.map_err(|e| e.kind());
        match kind {
            // The error shows whether the host or the gateway has ended.
            (Policy::Secret(_), Policy::Secret(_)) => assert_eq!(end, Err(ErrorKind::UnexpectedEof)),
            (Policy::Secret(_), _) => assert_eq!(end, Ok(())),
            _ => assert_eq!(end, Err(ErrorKind::NotConnected)),
        }
    }
}

#[test]
fn reset_is_forwarded_in_both_directions() {
    for kind in kinds() {
        let Tunnel { _running, splice: _splice, mut client, host } = tunnel(&kind);
        sys::reset(host.fd());
        drop(host);
        assert_eq!(read_all(&mut client).1.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let Tunnel { _running, splice: _splice, client, mut host } = tunnel(&kind);
        sys::reset(client.fd());
        drop(client);
        assert_eq!(read_all(&mut host).1.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn end_of_a_gateway_is_not_the_hosts() {
    for (policy, _) in kinds() {
        let (near, middle, _far, _host) = way(&policy);
        let mut client = Stream::through(near);
        drop(middle);
        assert_eq!(read_all(&mut client).1.unwrap_err().kind(), ErrorKind::NotConnected);
    }
}

#[test]
fn closed_splice_resets_both_sides() {
    let Tunnel { _running, splice, mut client, mut host } = tunnel(&kinds()[0]);
    splice.close();
    for end in [&mut client, &mut host] {
        assert_eq!(read_all(end).1.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
