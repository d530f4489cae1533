//! A session that a test has paused: see `pause`.

use std::sync::Arc;

use super::heartbeat::Beats;
use super::{Frames, Trunk};
use crate::lock::lock;
use crate::sys;

impl Trunk {
    /// For tests: stops the traffic of both directions without notifying either side. Connections stay open, and their bytes wait.
    pub fn stand_still(&self) {
        let _input = lock(&self.input);
        let mut pipe = lock(&self.pipe);
        let heart = lock(&self.heart);
        // Bytes that others would forward during the pause are lost. So the session continues only over a stream of its own.
        pipe.routed = false;
        self.still.begin();
        for (token, fd) in pipe.stream.iter().map(|(s, token)| (*token, s.fd())).chain(heart.iter().map(|h| (h.token, h.stream.fd()))) {
            self.poller.remove(token, fd);
        }
    }

    pub fn is_still(&self) -> bool {
        self.still.get()
    }

    /// Ends the pause.
    pub fn go_on(self: &Arc<Self>) {
        self.still.end();
        let frames = {
            let mut pipe = lock(&self.pipe);
            pipe.want_write = false;
            let stream = pipe.stream.take().filter(|(s, token)| self.watch(s.fd(), *token, Arc::new(Frames(self.clone(), *token))));
            pipe.stream = stream;
            self.flush(&mut pipe);
            pipe.stream.as_ref().map(|(_, token)| *token)
        };
        let heart = {
            let mut heart = lock(&self.heart);
            let stream = heart.take().filter(|h| self.watch(h.stream.fd(), h.token, Arc::new(Beats(self.clone(), h.token))));
            *heart = stream;
            heart.as_ref().map(|h| h.token)
        };
        let me = self.clone();
        self.poller.spawn(Box::new(move || {
            // Bytes that the streams have already decrypted cause no event at their descriptors.
            if let Some(token) = heart {
                me.flush_heart(token);
                me.read_heart(token);
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
