//! Lines that are also shown at the client of the job, if it is on another host.

use std::sync::Arc;

/// Sends whole lines of a stream to the client: 1 for stdout, 2 for stderr. `may_wait`: the calling thread may block while the client does
/// not keep up.
pub type Send = Arc<dyn Fn(u8, Vec<u8>, bool) + std::marker::Send + Sync>;

/// The lines of one stream that are not sent yet. The stream owns it.
pub struct Viewer {
    send: Send,
    /// 1: stdout; 2: stderr.
    stream: u8,
    /// The text before each line.
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

    /// Takes the lines out; the caller sends them after it has released its locks.
    pub fn take(&mut self) -> Option<Parcel> {
        (!self.lines.is_empty()).then(|| Parcel { send: self.send.clone(), stream: self.stream, lines: std::mem::take(&mut self.lines) })
    }
}

/// Lines to be sent.
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
