//! Memory that devices reach without asking anybody: it stays where it is until they have been told that it has ended.
//!
//! Whoever drives the devices holds an export for each registration that they know. When the registration ends, or an allocation that
//! was looked up is freed, a descriptor becomes readable; the driver takes the memory from the devices, and lets go.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use net::lock::lock;
use net::sys as base;

use crate::registry::{Id, Pin};

#[derive(Default)]
struct State {
    held: HashMap<Id, Pin>,
    ended: Vec<Id>,
    freed: Vec<(usize, usize)>,
}

pub struct Exports {
    state: Mutex<State>,
    event: OwnedFd,
}

/// What has ended since the last time: registrations, and allocations by address and bytes.
pub type Ended = (Vec<Id>, Vec<(usize, usize)>);

impl Exports {
    pub fn new() -> io::Result<Exports> {
        Ok(Exports { state: Mutex::default(), event: base::eventfd()? })
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub fn take(&self) -> Ended {
        base::eventfd_drain(self.event.as_raw_fd());
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.ended), std::mem::take(&mut state.freed))
    }

    pub fn has(&self, id: &Id) -> bool {
        lock(&self.state).held.contains_key(id)
    }

    pub fn hold(&self, id: Id, pin: Pin) {
        let mut state = lock(&self.state);
        let old = state.held.insert(id, pin);
        // Its end may have been told before it was here.
        let is_current = state.held.get(&id).is_some_and(Pin::is_current);
        if !is_current {
            state.ended.push(id);
            base::eventfd_signal(self.event.as_raw_fd());
        }
        drop(state);
        // A pin is let go of without the lock: what it keeps may be freed with it, which is told here.
        drop(old);
    }

    pub fn let_go(&self, id: &Id) {
        let pin = lock(&self.state).held.remove(id);
        drop(pin);
    }

    /// These registrations have ended.
    pub fn note(&self, ids: &[Id]) {
        let mut state = lock(&self.state);
        let before = state.ended.len();
        let held: Vec<Id> = ids.iter().filter(|id| state.held.contains_key(*id)).copied().collect();
        state.ended.extend(held);
        if state.ended.len() > before {
            base::eventfd_signal(self.event.as_raw_fd());
        }
    }

    /// This allocation is freed.
    pub fn note_freed(&self, address: usize, nbytes: usize) {
        lock(&self.state).freed.push((address, nbytes));
        base::eventfd_signal(self.event.as_raw_fd());
    }
}
