//! The heartbeat stream of a session.

use std::sync::Arc;

use wire::greeting::Heartbeat;

use super::{HEART, Trunk};
use crate::heartbeat_stream::Heart;
use crate::lock::lock;
use crate::poller::Source;
use crate::stream::Stream;
use crate::sys;

impl Trunk {
    /// Gives the session a heartbeat stream.
    pub fn attach_heart(self: &Arc<Self>, stream: Stream, prologue: &[u8], early: Vec<u8>) {
        let mut heart = lock(&self.heart);
        if self.is_closed() || self.is_still() {
            return;
        }
        let token = self.poller.token();
        if !self.watch(stream.fd(), token, Arc::new(Beats(self.clone(), token))) {
            return;
        }
        if let Some(old) = heart.replace(Heart::new(stream, token, prologue, early)) {
            self.poller.remove(old.token, old.stream.fd());
            sys::reset(old.stream.fd());
        }
        drop(heart);
        let me = self.clone();
        self.poller.spawn(Box::new(move || {
            me.flush_heart(token);
            me.read_heart(token);
        }));
    }

    pub(super) fn flush_heart(&self, token: u64) {
        if let Some(h) = lock(&self.heart).as_mut().filter(|h| h.token == token && !self.is_still()) {
            // The reader gets the same error and reports it.
            let _ = h.flush();
            self.poller.want_write(h.token, h.stream.fd(), h.want_write);
        }
    }

    pub fn has_heart(&self) -> bool {
        lock(&self.heart).is_some()
    }

    /// Sends a heartbeat message, if the session has a heartbeat stream or a route.
    pub fn beat(&self, beat: &Heartbeat) {
        if !self.has_heart() && self.is_routed() {
            return self.handler.carry_beat(self, beat);
        }
        let mut heart = lock(&self.heart);
        let Some(h) = heart.as_mut().filter(|_| !self.is_still()) else { return };
        let before = h.want_write;
        // The reader gets the same error and reports it.
        let _ = h.send(beat);
        if h.want_write != before {
            self.poller.want_write(h.token, h.stream.fd(), h.want_write);
        }
    }

    pub(super) fn read_heart(self: &Arc<Self>, token: u64) {
        let mut beats = Vec::new();
        let end = {
            let mut heart = lock(&self.heart);
            let Some(h) = heart.as_mut().filter(|h| h.token == token && !self.is_still()) else { return };
            let end = h.read(&mut beats);
            if end.is_some()
                && let Some(old) = heart.take()
            {
                self.poller.remove(token, old.stream.fd());
                sys::reset(old.stream.fd());
            }
            end
        };
        if !beats.is_empty() {
            self.handler.heard(self);
        }
        beats.into_iter().for_each(|b| self.handler.beat(self, b));
        if let Some(end) = end {
            self.handler.broken(self, HEART, end);
        }
    }
}

/// The heartbeat stream as a source of the poller; the number is the token of the stream.
pub(super) struct Beats(pub(super) Arc<Trunk>, pub(super) u64);

impl Source for Beats {
    fn ready(&self, events: u32) {
        if events & libc::EPOLLOUT as u32 != 0 {
            self.0.flush_heart(self.1);
        }
        if events & !(libc::EPOLLOUT as u32) != 0 {
            self.0.read_heart(self.1);
        }
    }
}
