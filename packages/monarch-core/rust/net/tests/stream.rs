//! The reported end of a stream, by the error of the kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use net::{Stream, sys};

fn pair() -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ours.set_nonblocking(true).unwrap();
    (Stream::plain(OwnedFd::from(ours)), listener.accept().unwrap().0)
}

/// Waits until the end of the stream has arrived.
fn ended(stream: &Stream) {
    let mut poll = libc::pollfd { fd: stream.fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
}

#[test]
fn reset_seen_by_a_write_is_no_end() {
    let (mut stream, theirs) = pair();
    sys::reset(theirs.as_raw_fd());
    drop(theirs);
    ended(&stream);
    assert_eq!(stream.write(&[b"word"]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(stream.write(&[b"word"]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    for _ in 0..2 {
        assert_eq!(stream.read(&mut Vec::new(), 10).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn bytes_before_a_reset_are_read_first() {
    let (mut stream, mut theirs) = pair();
    theirs.write_all(b"last").unwrap();
    sys::reset(theirs.as_raw_fd());
    drop(theirs);
    ended(&stream);
    assert!(stream.write(&[b"word"]).is_err());
    let mut got = Vec::new();
    while stream.read(&mut got, 2).is_ok() {}
    assert_eq!(got, b"last");
    assert_eq!(stream.read(&mut got, 2).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn end_remains_an_end_after_failed_writes() {
    let (mut stream, mut theirs) = pair();
    stream.write(&[b"a"]).unwrap();
    theirs.read_exact(&mut [0]).unwrap();
    drop(theirs);
    ended(&stream);
    // The peer answers the first write with a reset; the second write fails.
    while stream.write(&[b"word"]).is_ok() {}
    assert_eq!(stream.read(&mut Vec::new(), 10).unwrap(), 0);
}
