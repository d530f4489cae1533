//! TLS records without a connection: a stream that one end has handed on exchanges TLS with one that was not, and changes of the bytes are
//! detected.

mod ends;

use std::os::fd::AsRawFd;

use ends::{Pair, Wire, poll, secret, target};
use net::records::{self, Forged, HEAD, Keys, MOST, TAIL};
use net::trust::{Kind, Policy};

fn opened() -> (net::Stream, net::Stream) {
    let pair = Pair::same(Wire::Tcp, Policy::Secret(secret(7)));
    let (a, b) = pair.open(target(Kind::Join), b"");
    (a.unwrap().stream, b.unwrap().stream)
}

fn read(stream: &mut net::Stream, n: usize) -> Vec<u8> {
    let mut got = vec![];
    while got.len() < n {
        match stream.read(&mut got, n) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => poll(&[(stream.fd(), false)]),
            Err(e) => panic!("{e}"),
        }
    }
    got
}

#[test]
fn handed_over_end_continues_the_stream() {
    let (mut ours, theirs) = opened();
    // Records before the hand-over are numbered too.
    ours.write(&[b"before"]).unwrap();
    ours.flush().unwrap();
    let mut theirs = theirs;
    assert_eq!(read(&mut theirs, 6), b"before");
    let (fd, keys) = theirs.into_parts().unwrap();
    let keys = Keys::from_bytes(&keys.unwrap().to_bytes()).unwrap();
    let (mut seal, mut open) = keys.ciphers().unwrap();
    let mut out = vec![];
    let large = vec![5u8; MOST];
    seal.seal(b"from records", &mut out).unwrap();
    seal.seal(&large, &mut out).unwrap();
    net::sys::send(fd.as_raw_fd(), &[&out], &[]).unwrap();
    assert_eq!(read(&mut ours, 12), b"from records");
    assert_eq!(read(&mut ours, MOST), large);
    ours.write(&[b"to records"]).unwrap();
    ours.flush().unwrap();
    let mut record = vec![];
    while records::length(&record).unwrap().is_none_or(|n| record.len() < n) {
        poll(&[(fd.as_raw_fd(), false)]);
        net::sys::read_into(fd.as_raw_fd(), &mut record, 1000).unwrap();
    }
    assert_eq!(open.open(&mut record).unwrap().unwrap(), b"to records");
    // The record that announces the end.
    ours.close();
    let mut record = vec![];
    while records::length(&record).unwrap().is_none_or(|n| record.len() < n) {
        poll(&[(fd.as_raw_fd(), false)]);
        net::sys::read_into(fd.as_raw_fd(), &mut record, 1000).unwrap();
    }
    assert_eq!(open.open(&mut record).unwrap(), None);
}

#[test]
fn stream_with_unread_records_is_not_handed_over() {
    let (mut ours, mut theirs) = opened();
    ours.write(&[b"two"]).unwrap();
    ours.write(&[b"records"]).unwrap();
    ours.flush().unwrap();
    // One of the records is read; the other waits in the stream.
    assert_eq!(read(&mut theirs, 3), b"two");
    assert!(theirs.into_parts().is_none());
}

#[test]
fn changed_missing_or_repeated_record_is_refused() {
    let keys = |seal: u8, open: u8| {
        let one = |byte: u8| [&[1u8][..], &3u64.to_le_bytes(), &[byte; 12], &[byte; 16]].concat();
        Keys::from_bytes(&[one(seal), one(open)].concat()).unwrap().ciphers().unwrap()
    };
    let record = |n: usize| {
        let mut seal = keys(1, 2).0;
        let mut all = vec![];
        (0..n).for_each(|i| seal.seal(&[i as u8; 100], &mut all).unwrap());
        all
    };
    let whole = HEAD + 100 + TAIL;
    for at in [0, 3, HEAD, HEAD + 50, whole - 1] {
        let mut changed = record(1);
        changed[at] ^= 1;
        let outcome = records::length(&changed).and_then(|n| match n {
            Some(n) if n == changed.len() => keys(2, 1).1.open(&mut changed).map(|_| ()),
            // The length field was changed: the record is incomplete or too long.
            _ => Err(Forged),
        });
        assert_eq!(outcome, Err(Forged), "byte {at}");
    }
    let mut two = record(2);
    assert_eq!(keys(2, 1).1.open(&mut two.clone()[whole..]), Err(Forged));
    let mut open = keys(2, 1).1;
    let first = two[..whole].to_vec();
    assert!(open.open(&mut two[..whole]).is_ok());
    assert_eq!(open.open(&mut first.clone()), Err(Forged));
    assert!(records::length(&[23, 3, 3, 0xff, 0xff]).is_err());
    for bytes in [&b""[..], b"x", &[9; 37], &[1; 75]] {
        assert!(Keys::from_bytes(bytes).is_none());
    }
}
