//! The heartbeat stream of a session. Its small messages never wait behind other traffic and are not sent again when they are lost.

use std::io;

use wire::greeting::{self, Heartbeat};

use crate::session::StreamEnd;
use crate::stream::Stream;

/// Most bytes that wait to be written. Beyond them the other side does not read, and a further heartbeat has no new information.
const MOST_WAITING: usize = 16 << 10;
/// Most bytes of one read; heartbeats are short.
const READ: usize = 4 << 10;

/// One stream with its partly read and partly written messages.
pub struct HeartbeatStream {
    pub stream: Stream,
    pub token: u64,
    input: Vec<u8>,
    output: Vec<u8>,
    pub want_write: bool,
}

impl HeartbeatStream {
    /// `prologue` is sent first; `early` are bytes that the handshake has already received.
    pub fn new(stream: Stream, token: u64, prologue: &[u8], early: Vec<u8>) -> Self {
        HeartbeatStream { stream, token, input: early, output: prologue.to_vec(), want_write: false }
    }

    pub fn send(&mut self, heartbeat: &Heartbeat) -> io::Result<()> {
        if self.output.len() < MOST_WAITING {
            let body = greeting::encode(heartbeat);
            self.output.extend_from_slice(&(body.len() as u32).to_le_bytes());
            self.output.extend_from_slice(&body);
        }
        self.flush()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&[&self.output]) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let flushed = self.stream.flush()?;
        self.want_write = !flushed || !self.output.is_empty();
        Ok(())
    }

    /// Reads all complete heartbeats into `heartbeats`. Returns how the stream has ended, if it has.
    pub fn read(&mut self, heartbeats: &mut Vec<Heartbeat>) -> Option<StreamEnd> {
        loop {
            let mut at = 0;
            while let Some(len) = self.input.get(at..at + 4).and_then(|b| b.try_into().ok()).map(|b| u32::from_le_bytes(b) as usize) {
                if len > greeting::LIMIT {
                    return Some(StreamEnd::Garbage);
                }
                let Some(body) = self.input.get(at + 4..at + 4 + len) else { break };
                let Some(heartbeat) = greeting::decode(body) else { return Some(StreamEnd::Garbage) };
                heartbeats.push(heartbeat);
                at += 4 + len;
            }
            self.input.drain(..at);
            match self.stream.read(&mut self.input, READ) {
                Ok(0) => return Some(StreamEnd::Closed),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Some(StreamEnd::of(&e)),
            }
        }
    }
}
