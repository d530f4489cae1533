//! A table of entries with a time, and one timer for all of them.
//!
//! Most entries are removed before their time: most calls are answered before their deadline. So the timer is not moved when its entry is
//! removed: it expires, finds nothing, and is set for the earliest entry that is left. In simulated time such a timer would move the clock,
//! so there it is cancelled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use net::Poller;
use net::lock::lock;

/// The entries by time and number, and the time and the number of the timer.
struct State<V> {
    entries: BTreeMap<(Instant, u64), V>,
    timer: Option<(Instant, u64)>,
}

/// The table. `on_due` gets all entries that are due together, on the I/O thread.
pub(crate) struct DueTable<V> {
    poller: Arc<Poller>,
    state: Mutex<State<V>>,
    on_due: Box<dyn Fn(Vec<V>) + Send + Sync>,
    me: Weak<DueTable<V>>,
}

impl<V: Send + 'static> DueTable<V> {
    pub fn new(poller: &Arc<Poller>, on_due: impl Fn(Vec<V>) + Send + Sync + 'static) -> Arc<Self> {
        let state = Mutex::new(State { entries: BTreeMap::new(), timer: None });
        Arc::new_cyclic(|me| DueTable { poller: poller.clone(), state, on_due: Box::new(on_due), me: me.clone() })
    }

    /// Adds an entry; the pair of `at` and `number` identifies it.
    pub fn add(&self, at: Instant, number: u64, entry: V) {
        let mut state = lock(&self.state);
        state.entries.insert((at, number), entry);
        self.set_timer(&mut state);
    }

    /// Removes an entry, if it is still there.
    pub fn remove(&self, at: Instant, number: u64) -> Option<V> {
        let mut state = lock(&self.state);
        let removed = state.entries.remove(&(at, number));
        if self.poller.timeline().is_some()
            && let Some((due, timer)) = state.timer
            && state.entries.first_key_value().is_none_or(|((first, _), _)| *first > due)
        {
            self.poller.cancel(timer);
            state.timer = None;
            self.set_timer(&mut state);
        }
        removed
    }

    /// Sets the timer for the first entry, unless there is a timer that is not later.
    fn set_timer(&self, state: &mut State<V>) {
        let Some(((first, _), _)) = state.entries.first_key_value() else { return };
        if state.timer.is_some_and(|(due, _)| due <= *first) {
            return;
        }
        let me = self.me.clone();
        let fire = move || drop(me.upgrade().inspect(|me| me.fire()));
        let left = first.saturating_duration_since(self.poller.now());
        state.timer = Some((*first, self.poller.timer(left, Box::new(fire))));
    }

    fn fire(&self) {
        let now = self.poller.now();
        let mut state = lock(&self.state);
        if state.timer.is_some_and(|(due, _)| due <= now) {
            state.timer = None;
        }
        let rest = state.entries.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.entries, rest);
        self.set_timer(&mut state);
        drop(state);
        if !due.is_empty() {
            (self.on_due)(due.into_values().collect());
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        lock(&self.state).entries.len()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    fn table() -> (Arc<Poller>, Arc<DueTable<u64>>, Receiver<Vec<u64>>) {
        let poller = Poller::new().unwrap();
        let (theirs, (sender, due)) = (poller.clone(), channel());
        std::thread::spawn(move || theirs.run());
        let sender = Mutex::new(sender);
        let table = DueTable::new(&poller, move |all| lock(&sender).send(all).unwrap());
        (poller, table, due)
    }

    #[test]
    fn entries_of_one_time_are_due_together() {
        let (poller, table, due) = table();
        let at = poller.now() + Duration::from_millis(5);
        (0..1000).for_each(|n| table.add(at, n, n));
        assert_eq!(due.recv().unwrap(), (0..1000).collect::<Vec<_>>());
        assert_eq!(table.len(), 0);
        poller.stop();
    }

    #[test]
    fn earlier_entry_is_due_first() {
        let (poller, table, due) = table();
        let now = poller.now();
        table.add(now + Duration::from_millis(40), 1, 1);
        table.add(now + Duration::from_millis(2), 2, 2);
        assert_eq!((due.recv().unwrap(), due.recv().unwrap()), (vec![2], vec![1]));
        poller.stop();
    }

    #[test]
    fn removed_entry_is_never_due() {
        let (poller, table, due) = table();
        let at = poller.now() + Duration::from_millis(5);
        table.add(at, 1, 1);
        table.add(at, 2, 2);
        assert_eq!((table.remove(at, 1), table.remove(at, 1)), (Some(1), None));
        assert_eq!(due.recv().unwrap(), [2]);
        poller.stop();
    }
}
