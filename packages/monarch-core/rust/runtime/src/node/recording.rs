//! The recording of this process's events, in a ring of shared memory. The agent holds the ring too, so it can be read when this process
//! has ended.

use std::sync::atomic::Ordering;

use wire::{Control, Frame};

use crate::node::Node;

impl Node {
    /// Records events for this process itself: recording continues when observers end.
    pub fn keep_recording(&self, events: u32) {
        self.flight_recorder.store(true, Ordering::Release);
        self.record(events);
    }

    /// Records this process's events in a ring for at least `events` of them, which its agent keeps; 0 ends the recording. A process
    /// without memory for the ring continues without it.
    pub(crate) fn record(&self, events: u32) {
        if events == 0 {
            if !self.flight_recorder.load(Ordering::Acquire) {
                events::stop();
            }
            return;
        }
        let Ok(made) = events::start(self.uid.0, events as usize) else { return };
        events::record_facts();
        let Some(fd) = made else { return };
        match self.agent() {
            Some(agent) => agent.recordings.add(self.uid, fd),
            None => {
                let frame = Frame::Control(Control::Recording).encode();
                let _ = self.peer_unlinked(self.agent_uid).0.link.send(&[&frame], vec![fd]);
            }
        }
    }
}
