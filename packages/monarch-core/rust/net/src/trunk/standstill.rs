//! A session that a test has paused: see `still`.

use std::sync::Arc;

use super::heart_stream::Beats;
use super::{Frames, Trunk};
use crate::lock::lock;
use crate::sys;

impl Trunk {
    /// For tests: neither side receives from the other from now on, and neither is notified. Connections stay open, and wait.
    pub fn stand_still(&self) {
        let _input = lock(&self.input);
        let mut pipe = lock(&self.pipe);
        let heart = lock(&self.heart);
        // What others would bring meanwhile is missing after that: only a stream of its own goes on.
        pipe.routed = false;
        self.still.begin();
        for (token, fd) in pipe.stream.iter().map(|(s, token)| (*token, s.fd())).chain(heart.iter().map(|h| (h.token, h.stream.fd()))) {
            self.poller.remove(token, fd);
        }
    }

    pub fn is_still(&self) -> bool {
        self.still.get()
    }

    /// What was standing still goes on.
    pub fn go_on(self: &Arc<Self>) {
        self.still.end();
        let frames = {
            let mut pipe = lock(&self.pipe);
            pipe.want_write = false;
            let found = pipe.stream.as_ref().map(|(s, token)| (*token, s.fd()));
            found.inspect(|(token, fd)| drop(self.poller.add(*token, *fd, Arc::new(Frames(self.clone(), *token)))));
            self.flush(&mut pipe);
            found
        };
        let heart = lock(&self.heart).as_ref().map(|h| (h.token, h.stream.fd()));
        heart.inspect(|(token, fd)| drop(self.poller.add(*token, *fd, Arc::new(Beats(self.clone(), *token)))));
        let me = self.clone();
        self.poller.spawn(Box::new(move || {
            // What the streams have decrypted already does not show at their descriptors.
            if let Some((token, _)) = heart {
                me.flush_heart(token);
                me.read_heart(token);
            }
            if let Some((token, _)) = frames {
                me.read(token);
            }
        }));
    }

    /// Breaks the stream for frames, as a network does now and then: for tests.
    pub fn cut(&self) {
        if let Some((stream, _)) = &lock(&self.pipe).stream {
            // The lock keeps the descriptor open.
            sys::shutdown(stream.fd());
        }
    }
}
