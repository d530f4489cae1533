//! The recording of this process's events, in a ring of shared memory. The agent holds the ring too, so it can be read when this process
//! has ended. It needs the link to the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::{Control, Frame};

use crate::peers::Peers;

/// The recording of one process.
pub struct Recording {
    peers: Arc<Peers>,
    /// This process records its events for its own ring, with or without an observer.
    is_kept: AtomicBool,
}

impl Recording {
    pub(crate) fn new(peers: &Arc<Peers>) -> Self {
        Recording { peers: peers.clone(), is_kept: AtomicBool::new(false) }
    }

    /// Records events for this process itself: recording continues when observers end.
    pub fn keep(&self, events: u32) {
        self.is_kept.store(true, Ordering::Release);
        self.record(events);
    }

    /// Records this process's events in a ring for at least `events` of them, which its agent keeps; 0 ends the recording. A process
    /// without memory for the ring continues without it.
    pub(crate) fn record(&self, events: u32) {
        if events == 0 {
            if !self.is_kept.load(Ordering::Acquire) {
                events::stop();
            }
            return;
        }
        let Ok(made) = events::start(self.peers.uid.0, events as usize) else { return };
        events::record_facts();
        let Some(fd) = made else { return };
        match self.peers.roles.agent() {
            Some(agent) => agent.keep_ring(self.peers.uid, fd),
            None => {
                let frame = Frame::Control(Control::Recording).encode();
                let _ = self.peers.peer_unlinked(self.peers.agent_uid).0.link.send(&[&frame], vec![fd]);
            }
        }
    }
}
