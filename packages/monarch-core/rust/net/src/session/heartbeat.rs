//! The heartbeat stream of a session.

use std::sync::Arc;

use wire::greeting::Heartbeat;

use super::{HEARTBEAT, Session};
use crate::heartbeat_stream::HeartbeatStream;
use crate::lock::lock;
use crate::poller::Source;
use crate::stream::Stream;
use crate::sys;

impl Session {
    /// Gives the session a heartbeat stream.
    pub fn attach_heartbeat(self: &Arc<Self>, stream: Stream, prologue: &[u8], early: Vec<u8>) {
        let mut heartbeat = lock(&self.heartbeat);
        if self.is_closed() || self.is_paused() {
            return;
        }
        let token = self.poller.token();
        if !self.watch(stream.fd(), token, Arc::new(HeartbeatSource(self.clone(), token))) {
            return;
        }
        if let Some(old) = heartbeat.replace(HeartbeatStream::new(stream, token, prologue, early)) {
            self.poller.remove(old.token, old.stream.fd());
            sys::reset(old.stream.fd());
        }
        drop(heartbeat);
        let me = self.clone();
        self.poller.spawn(Box::new(move || {
            me.flush_heartbeat(token);
            me.read_heartbeat(token);
        }));
    }

    pub(super) fn flush_heartbeat(&self, token: u64) {
        if let Some(h) = lock(&self.heartbeat).as_mut().filter(|h| h.token == token && !self.is_paused()) {
            // The reader gets the same error and reports it.
            let _ = h.flush();
            self.poller.want_write(h.token, h.stream.fd(), h.want_write);
        }
    }

    pub fn has_heartbeat(&self) -> bool {
        lock(&self.heartbeat).is_some()
    }

    /// Sends a heartbeat message, if the session has a heartbeat stream or a route.
    pub fn send_heartbeat(&self, message: &Heartbeat) {
        if !self.has_heartbeat() && self.is_routed() {
            return self.handler.forward_heartbeat(self, message);
        }
        let mut heartbeat = lock(&self.heartbeat);
        let Some(h) = heartbeat.as_mut().filter(|_| !self.is_paused()) else { return };
        let before = h.want_write;
        // The reader gets the same error and reports it.
        let _ = h.send(message);
        if h.want_write != before {
            self.poller.want_write(h.token, h.stream.fd(), h.want_write);
        }
    }

    pub(super) fn read_heartbeat(self: &Arc<Self>, token: u64) {
        let mut heartbeats = Vec::new();
        let end = {
            let mut heartbeat = lock(&self.heartbeat);
            let Some(h) = heartbeat.as_mut().filter(|h| h.token == token && !self.is_paused()) else { return };
            let end = h.read(&mut heartbeats);
            if end.is_some()
                && let Some(old) = heartbeat.take()
            {
                self.poller.remove(token, old.stream.fd());
                sys::reset(old.stream.fd());
            }
            end
        };
        if !heartbeats.is_empty() {
            self.handler.bytes_received(self);
        }
        heartbeats.into_iter().for_each(|b| self.handler.heartbeat(self, b));
        if let Some(end) = end {
            self.handler.broken(self, HEARTBEAT, end);
        }
    }
}

/// The heartbeat stream as a source of the poller; the number is the token of the stream.
pub(super) struct HeartbeatSource(pub(super) Arc<Session>, pub(super) u64);

impl Source for HeartbeatSource {
    fn ready(&self, events: u32) {
        if events & libc::EPOLLOUT as u32 != 0 {
            self.0.flush_heartbeat(self.1);
        }
        if events & !(libc::EPOLLOUT as u32) != 0 {
            self.0.read_heartbeat(self.1);
        }
    }
}
