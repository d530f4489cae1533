//! The kernel's counters of a TCP connection: bytes of both directions, and the round-trip time.

use std::os::fd::RawFd;

use wire::ProcUid;

use crate::session::StreamEnd;
use crate::stream::Stream;

/// All zero for sockets that are not TCP.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Bytes that the other side's kernel has acknowledged.
    pub sent: u64,
    pub received: u64,
    /// The smoothed round-trip time in nanoseconds.
    pub round_trip: u64,
}

/// The first fields of the kernel's `struct tcp_info`, whose offsets are fixed (linux/tcp.h). The kernel returns the number of filled
/// bytes.
const LEN: usize = 136;
const RTT: usize = 68;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

impl Traffic {
    /// The counters of a socket.
    pub fn of(fd: RawFd) -> Traffic {
        let mut info = [0_u8; LEN];
        let mut len = LEN as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to the local array.
        let r = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len) };
        if r != 0 {
            return Traffic::default();
        }
        let name = |at: usize| info[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let micros = info[RTT..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        Traffic { sent: name(BYTES_ACKED), received: name(BYTES_RECEIVED), round_trip: u64::from(micros) * 1000 }
    }

    /// Records the end of a connection to another host as an event.
    pub(crate) fn note_end(stream: &Stream, host: ProcUid, end: &str) {
        if events::is_on() {
            let found = Traffic::of(stream.fd());
            events::link_broken(host.0, end.as_bytes(), found.sent, found.received, found.round_trip);
        }
    }
}

impl StreamEnd {
    /// The name of this end in events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StreamEnd::Closed => "closed",
            StreamEnd::Reset => "reset",
            StreamEnd::Garbage => "malformed",
            StreamEnd::Failed => "failed",
        }
    }
}
