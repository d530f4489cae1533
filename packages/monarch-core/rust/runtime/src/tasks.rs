//! Tasks of components: work for later, for the I/O thread, or for the completion of something.
//!
//! No task keeps its component alive: once the component has been dropped, the task does nothing.

use std::sync::Arc;
use std::time::Duration;

use net::Poller;

/// Lets the I/O thread call `task` soon.
pub(crate) fn spawn<T: Send + Sync + 'static>(poller: &Poller, me: &Arc<T>, task: impl FnOnce(&Arc<T>) + Send + 'static) {
    let task = callback(me, |me, ()| task(me));
    poller.spawn(Box::new(move || task(())));
}

/// Lets the I/O thread call `task` after `delay`.
pub(crate) fn later<T: Send + Sync + 'static>(poller: &Poller, delay: Duration, me: &Arc<T>, task: impl FnOnce(&Arc<T>) + Send + 'static) {
    let task = callback(me, |me, ()| task(me));
    poller.later(delay, Box::new(move || task(())));
}

/// As `later`, for a task that concerns an object: the task does not keep the object alive either.
pub(crate) fn later_for<T: Send + Sync + 'static, U: Send + Sync + 'static>(
    poller: &Poller,
    delay: Duration,
    me: &Arc<T>,
    object: &Arc<U>,
    task: impl FnOnce(&Arc<T>, &Arc<U>) + Send + 'static,
) {
    let object = Arc::downgrade(object);
    later(poller, delay, me, move |me| {
        if let Some(object) = object.upgrade() {
            task(me, &object);
        }
    });
}

/// A function that calls `f` with the component and its argument.
pub(crate) fn callback<T: Send + Sync + 'static, A>(
    me: &Arc<T>,
    f: impl FnOnce(&Arc<T>, A) + Send + 'static,
) -> impl FnOnce(A) + Send + 'static {
    let me = Arc::downgrade(me);
    move |argument| {
        if let Some(me) = me.upgrade() {
            f(&me, argument);
        }
    }
}
