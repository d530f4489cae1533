//! Streams to an owner in this process, which a test can break.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bulk::Bulk;
use bulk::remote::{Fabric, NoStream, Opened};
use net::records::Keys;

/// The keys of two ends, as a handshake leaves them: suite, number, iv, key; the sealing keys come first.
pub fn keys() -> (Keys, Keys) {
    let secret = |byte: u8| [&[1u8][..], &0u64.to_le_bytes(), &[byte; 12], &[byte; 16]].concat();
    let of = |a, b| Keys::from_bytes(&[secret(a), secret(b)].concat()).unwrap();
    (of(1, 2), of(2, 1))
}

/// Opens streams to an owner in this process.
pub struct Cable {
    pub owner: Arc<Bulk>,
    pub encrypted: bool,
    pub opened: AtomicUsize,
    pub ended: AtomicBool,
    /// For each opened stream: the number of bytes to the reader after which it breaks.
    pub breaks: Mutex<VecDeque<usize>>,
}

impl Cable {
    /// A stream through a thread that forwards this many bytes and no more.
    fn cut_after(bytes: usize) -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        let ((near, a), (b, far)) = (pair(), pair());
        let pass = |from: Arc<std::os::fd::OwnedFd>, to: Arc<std::os::fd::OwnedFd>, most: usize| {
            std::thread::spawn(move || {
                let (mut left, mut buf) = (most, vec![0u8; 64 << 10]);
                while left > 0 {
                    let most = buf.len().min(left);
                    let n = unsafe { libc::recv(from.as_raw_fd(), buf.as_mut_ptr().cast(), most, 0) };
                    if n <= 0 {
                        break;
                    }
                    let sent = unsafe { libc::send(to.as_raw_fd(), buf.as_ptr().cast(), n as usize, libc::MSG_NOSIGNAL) };
                    if sent != n {
                        break;
                    }
                    left -= n as usize;
                }
                for fd in [&from, &to] {
                    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
                }
            });
        };
        let (a, b) = (Arc::new(a), Arc::new(b));
        pass(b.clone(), a.clone(), bytes);
        pass(a, b, usize::MAX);
        (near, far)
    }
}

pub fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    (a.into(), b.into())
}

impl Fabric for Cable {
    fn open(&self, _: u64, _: Instant) -> Result<Opened, NoStream> {
        if self.ended.load(Ordering::Acquire) {
            return Err(NoStream::Ended);
        }
        self.opened.fetch_add(1, Ordering::AcqRel);
        let (near, far) = match self.breaks.lock().unwrap().pop_front() {
            Some(bytes) => Cable::cut_after(bytes),
            None => pair(),
        };
        let (ours, theirs) = keys();
        let keys = |k| if self.encrypted { Some(k) } else { None };
        self.owner.answer(7, Opened { fd: far, keys: keys(theirs), dialled: false, is_routed: false, paused: Arc::default() });
        Ok(Opened { fd: near, keys: keys(ours), dialled: true, is_routed: false, paused: Arc::default() })
    }

    fn has_ended(&self, _: u64) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
