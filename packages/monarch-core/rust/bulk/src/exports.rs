//! Memory that devices can reach without a request: it stays in place until the driver of the devices knows that it has ended.
//!
//! The driver holds an export for each registration that the devices know. When the registration ends, or a watched allocation is freed, a
//! descriptor becomes readable. The driver then removes the memory from the devices and releases the export.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use net::lock::lock;
use net::sys as base;

use crate::frames::Id;
use crate::registry::Pin;

/// The exports, and the ends that the driver has not taken yet.
#[derive(Default)]
struct State {
    held: HashMap<Id, Pin>,
    ended: Vec<Id>,
    freed: Vec<(usize, usize)>,
}

/// The registrations that devices can reach. Owned by the registry; the driver of the devices takes the ends.
pub struct Exports {
    state: Mutex<State>,
    event: OwnedFd,
}

/// The ends since the last call: registrations, and allocations by address and bytes.
pub type Ended = (Vec<Id>, Vec<(usize, usize)>);

impl Exports {
    pub fn new() -> io::Result<Exports> {
        Ok(Exports { state: Mutex::default(), event: base::eventfd()? })
    }

    /// A descriptor that is readable when `take` has something to return.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Returns the ends since the last call, and makes the descriptor unreadable.
    pub fn take(&self) -> Ended {
        base::eventfd_drain(self.event.as_raw_fd());
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.ended), std::mem::take(&mut state.freed))
    }

    pub fn has(&self, id: &Id) -> bool {
        lock(&self.state).held.contains_key(id)
    }

    /// Adds an export, which keeps the memory in place.
    pub fn hold(&self, id: Id, pin: Pin) {
        let mut state = lock(&self.state);
        let old = state.held.insert(id, pin);
        // The registration may have ended before it was added.
        let is_current = state.held.get(&id).is_some_and(Pin::is_current);
        if !is_current {
            state.ended.push(id);
            base::eventfd_signal(self.event.as_raw_fd());
        }
        drop(state);
        // A pin is dropped outside the lock: its drop may free memory, which is reported here.
        drop(old);
    }

    /// Drops an export, after the devices have lost the memory.
    pub fn let_go(&self, id: &Id) {
        let pin = lock(&self.state).held.remove(id);
        drop(pin);
    }

    /// Reports the end of registrations.
    pub fn note(&self, ids: &[Id]) {
        let mut state = lock(&self.state);
        let before = state.ended.len();
        let held: Vec<Id> = ids.iter().filter(|id| state.held.contains_key(*id)).copied().collect();
        state.ended.extend(held);
        if state.ended.len() > before {
            base::eventfd_signal(self.event.as_raw_fd());
        }
    }

    /// Reports that an allocation was freed.
    pub fn note_freed(&self, address: usize, nbytes: usize) {
        lock(&self.state).freed.push((address, nbytes));
        base::eventfd_signal(self.event.as_raw_fd());
    }
}
