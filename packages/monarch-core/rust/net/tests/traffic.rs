//! The kernel's counters of a connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use net::traffic::Traffic;

#[test]
fn connection_counts_bytes_and_round_trip() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(&[7; 1000]).unwrap();
    far.read_exact(&mut [0; 1000]).unwrap();
    let (sender, receiver) = (Traffic::of(near.as_raw_fd()), Traffic::of(far.as_raw_fd()));
    assert_eq!((receiver.received, sender.received), (1000, 0));
    assert!(sender.round_trip > 0 && sender.round_trip < 1_000_000_000);
}

#[test]
fn other_sockets_count_nothing() {
    let (one, _other) = UnixStream::pair().unwrap();
    assert_eq!(Traffic::of(one.as_raw_fd()), Traffic::default());
    assert_eq!(Traffic::of(-1), Traffic::default());
}
