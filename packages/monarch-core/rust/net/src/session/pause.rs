//! A session that a test has paused: see `crate::pause`.

use std::sync::Arc;

use super::heartbeat::HeartbeatSource;
use super::{FrameSource, Session};
use crate::lock::lock;
use crate::sys;

impl Session {
    /// For tests: stops the traffic of both directions without notifying either side. Connections stay open, and their bytes wait.
    pub fn begin_pause(&self) {
        let _input = lock(&self.input);
        let mut pipe = lock(&self.pipe);
        let heartbeat = lock(&self.heartbeat);
        // Bytes that others would forward during the pause are lost. So the session continues only over a stream of its own.
        pipe.routed = false;
        self.pause.begin();
        for (token, fd) in pipe.stream.iter().map(|(s, token)| (*token, s.fd())).chain(heartbeat.iter().map(|h| (h.token, h.stream.fd()))) {
            self.poller.remove(token, fd);
        }
    }

    pub fn is_paused(&self) -> bool {
        self.pause.get()
    }

    /// Ends the pause.
    pub fn end_pause(self: &Arc<Self>) {
        self.pause.end();
        let frames = {
            let mut pipe = lock(&self.pipe);
            pipe.want_write = false;
            let stream = pipe.stream.take().filter(|(s, token)| self.watch(s.fd(), *token, Arc::new(FrameSource(self.clone(), *token))));
            pipe.stream = stream;
            self.flush(&mut pipe);
            pipe.stream.as_ref().map(|(_, token)| *token)
        };
        let heartbeat = {
            let mut heartbeat = lock(&self.heartbeat);
            let stream = heartbeat.take().filter(|h| self.watch(h.stream.fd(), h.token, Arc::new(HeartbeatSource(self.clone(), h.token))));
            *heartbeat = stream;
            heartbeat.as_ref().map(|h| h.token)
        };
        let me = self.clone();
        self.poller.spawn(Box::new(move || {
            // Bytes that the streams have already decrypted cause no event at their descriptors.
            if let Some(token) = heartbeat {
                me.flush_heartbeat(token);
                me.read_heartbeat(token);
            }
            if let Some(token) = frames {
                me.read(token);
            }
        }));
    }

    /// For tests: breaks the stream for frames, as a network failure would.
    pub fn cut(&self) {
        if let Some((stream, _)) = &lock(&self.pipe).stream {
            // The lock keeps the descriptor open.
            sys::shutdown(stream.fd());
        }
    }
}
