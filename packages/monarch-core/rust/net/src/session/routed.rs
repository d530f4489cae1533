//! A session without a connection of its own: other sessions forward its bytes.
//!
//! A session begins without a connection if its two ends have joined a job by a third host. It counts and keeps frames as over a
//! connection, so a connection can replace the route at any time, and no frame is lost or duplicated; a route never replaces a connection.
//! The sessions on the route have connections: they keep the order, and lose nothing while they live.

use std::sync::Arc;

use super::{FRAMES, MAX_SLICES, Pipe, Session, StreamEnd, UNWRITTEN_LIMIT, may_queue_parts};
use crate::lock::lock;

impl Session {
    /// Makes other sessions forward all frames, including those that already wait. No effect if the session has a stream.
    pub fn begin_route(&self) {
        let mut pipe = lock(&self.pipe);
        if pipe.closed || pipe.stream.is_some() || self.is_paused() {
            return;
        }
        (pipe.routed, pipe.want_write) = (true, false);
        self.flush_routed(&mut pipe);
    }

    /// Ends the forwarding: frames wait for a stream, and forwarded bytes that still arrive are dropped.
    pub fn leave_route(&self) {
        let mut input = lock(&self.input);
        let mut pipe = lock(&self.pipe);
        if std::mem::take(&mut pipe.routed) {
            input.buf = Vec::new();
        }
    }

    pub fn is_routed(&self) -> bool {
        lock(&self.pipe).routed
    }

    /// Handles bytes that other sessions have forwarded.
    pub fn receive_forwarded(self: &Arc<Self>, bytes: &[u8]) {
        let mut input = lock(&self.input);
        if !self.is_routed() || self.is_paused() {
            return;
        }
        input.buf.extend_from_slice(bytes);
        if !self.frames(&mut input) {
            drop(input);
            self.leave_route();
            self.handler.broken(self, FRAMES, StreamEnd::Garbage);
        }
    }

    pub(super) fn flush_routed(&self, pipe: &mut Pipe) {
        if self.is_paused() {
            return;
        }
        loop {
            while pipe.outbox.unwritten() < UNWRITTEN_LIMIT
                && may_queue_parts(&pipe.queues, &pipe.outbox)
                && pipe.queues.next(&mut pipe.outbox)
            {}
            let bytes = pipe.outbox.pieces(MAX_SLICES).concat();
            if bytes.is_empty() {
                return;
            }
            pipe.outbox.wrote(bytes.len());
            self.handler.forward_bytes(self, bytes);
        }
    }
}
