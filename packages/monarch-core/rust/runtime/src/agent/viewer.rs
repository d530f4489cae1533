//! Lines that are also shown elsewhere: at the client of the job, if that is on another host.

use std::sync::Arc;

/// Takes whole lines of a stream: 1 for stdout, 2 for stderr. `may_wait`: on a thread that can be held back when the other side is behind.
pub type Send = Arc<dyn Fn(u8, Vec<u8>, bool) + std::marker::Send + Sync>;

/// What a stream of a proc has for it.
pub struct Viewer {
    send: Send,
    /// 1 or 2.
    stream: u8,
    /// Stands before each line.
    tag: Vec<u8>,
    lines: Vec<u8>,
}

impl Viewer {
    pub fn new(send: Send, stream: u8, tag: Vec<u8>) -> Self {
        Viewer { send, stream, tag, lines: Vec::new() }
    }

    pub fn add(&mut self, line: &[u8]) {
        self.lines.extend_from_slice(&self.tag);
        self.lines.extend_from_slice(line);
        self.lines.push(b'\n');
    }

    /// What is to be sent, by whoever holds no lock.
    pub fn take(&mut self) -> Option<Parcel> {
        (!self.lines.is_empty()).then(|| Parcel { send: self.send.clone(), stream: self.stream, lines: std::mem::take(&mut self.lines) })
    }
}

pub struct Parcel {
    send: Send,
    stream: u8,
    lines: Vec<u8>,
}

impl Parcel {
    pub fn go(self, may_wait: bool) {
        (self.send)(self.stream, self.lines, may_wait);
    }
}
