//! Waits of threads that hold the lock of the interpreter.
//!
//! The lock is released during a wait. On the main thread, signal handlers run when they are due, and their exception ends the wait. A
//! thread that must not continue when the process exits is blocked for ever.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::Instant;

use net::{Poller, WaitEnd, Waiter};

use super::exit::{is_main_thread, park_if_exiting, shield_thread};
use super::interpreter::{Hopeless, Interpreter};
use super::sender;
use super::signals::{self, SignalPipe};

thread_local! {
    /// A weak reference and not an address: the poller of a simulated world can be followed by another one at the same address, with
    /// another eventfd.
    static WAITER: Cell<Option<(Weak<Poller>, Arc<Waiter>)>> = const { Cell::new(None) };
}

/// The waiter of this thread.
pub fn waiter(poller: &Arc<Poller>) -> Arc<Waiter> {
    shield_thread();
    WAITER.with(|w| {
        let (of, waiter) = match w.take() {
            Some(known) if std::ptr::eq(known.0.as_ptr(), Arc::as_ptr(poller)) => known,
            _ => (Arc::downgrade(poller), poller.waiter()),
        };
        w.set(Some((of, waiter.clone())));
        waiter
    })
}

/// Runs `f` without the lock of the interpreter.
pub fn blocking<T: Send>(interpreter: &impl Interpreter, f: impl FnOnce() -> T + Send) -> T {
    interpreter.release(|| {
        let r = f();
        park_if_exiting();
        r
    })
}

/// Waits until `ready` is true; false after the deadline.
pub fn wait<I: Interpreter>(
    interpreter: &I,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> Result<bool, I::Error> {
    let end = wait_until(interpreter, poller, waiter, |done| poller.wait(waiter, deadline, done), ready)?;
    end.ok_or_else(|| interpreter.hopeless(Hopeless::Deadlock))
}

/// Waits as `wait` does, while other threads read the sockets.
pub fn follow<I: Interpreter>(
    interpreter: &I,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> Result<bool, I::Error> {
    let end = wait_until(interpreter, poller, waiter, |done| poller.follow(waiter, deadline, done), ready)?;
    end.ok_or_else(|| interpreter.hopeless(Hopeless::Deadlock))
}

/// Waits as `wait` does, for an answer: the thread checks for itself from time to time, and a lost notification is recorded.
pub fn wait_for_answer<I: Interpreter>(
    interpreter: &I,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> Result<bool, I::Error> {
    let wait = |done: &mut dyn FnMut() -> bool| match poller.wait_announced(waiter, deadline, done) {
        WaitEnd::Unannounced => {
            events::wakeup_lost(sender::id(), b"call", 0, 0);
            WaitEnd::Ready
        }
        end => end,
    };
    wait_until(interpreter, poller, waiter, wait, ready)?.ok_or_else(|| interpreter.hopeless(Hopeless::Deadlock))
}

/// Waits until the deadline, or without it until nothing can happen any more, which only simulated time shows; false in that case.
pub fn pause<I: Interpreter>(interpreter: &I, poller: &Arc<Poller>, deadline: Option<Instant>) -> Result<bool, I::Error> {
    let waiter = waiter(poller);
    Ok(wait_until(interpreter, poller, &waiter, |done| poller.wait(&waiter, deadline, done), || false)?.is_some())
}

/// Waits by `wait` until `ready` is true, and runs signal handlers on the main thread; `None` if nothing can happen any more.
fn wait_until<I: Interpreter>(
    interpreter: &I,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    wait: impl Fn(&mut dyn FnMut() -> bool) -> WaitEnd + Sync,
    ready: impl Fn() -> bool + Sync,
) -> Result<Option<bool>, I::Error> {
    let pipe = if is_main_thread() { signals::pipe(poller) } else { None };
    wait_with(interpreter, pipe.as_deref(), waiter, wait, ready)
}

/// Waits as `wait_until` does. A `pipe` reports the signals that arrive.
fn wait_with<I: Interpreter>(
    interpreter: &I,
    pipe: Option<&SignalPipe>,
    waiter: &Arc<Waiter>,
    wait: impl Fn(&mut dyn FnMut() -> bool) -> WaitEnd + Sync,
    ready: impl Fn() -> bool + Sync,
) -> Result<Option<bool>, I::Error> {
    loop {
        let before = match pipe {
            Some(p) => {
                let before = p.listen(interpreter, waiter)?;
                // Handles the signals that arrived before the thread began to listen.
                interpreter.check_signals().inspect_err(|_| SignalPipe::unlisten(interpreter, before))?;
                Some(before)
            }
            None => None,
        };
        let mut done = || ready() || pipe.is_some_and(SignalPipe::has_tripped);
        let end = blocking(interpreter, || wait(&mut done));
        if let Some(fd) = before {
            SignalPipe::unlisten(interpreter, fd);
        }
        let signalled = pipe.is_some_and(SignalPipe::take);
        if signalled || end == WaitEnd::Interrupted {
            interpreter.check_signals()?;
        }
        match end {
            WaitEnd::Ready if !signalled || ready() => return Ok(Some(true)),
            WaitEnd::TimedOut => return Ok(Some(false)),
            WaitEnd::Stuck => return Ok(None),
            WaitEnd::Killed => return Err(interpreter.hopeless(Hopeless::Killed)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::operations::interpreter::model::{Model, Raised};

    #[test]
    fn wait_ends_at_its_condition_or_deadline() {
        let poller = Poller::new().unwrap();
        let (waiter, interpreter) = (waiter(&poller), Model::default());
        assert_eq!(wait(&interpreter, &poller, &waiter, None, || true), Ok(true));
        assert_eq!(wait(&interpreter, &poller, &waiter, Some(poller.now()), || false), Ok(false));
    }

    #[test]
    fn thread_has_one_waiter_for_each_poller() {
        let (one, other) = (Poller::new().unwrap(), Poller::new().unwrap());
        let first = waiter(&one);
        assert!(Arc::ptr_eq(&first, &waiter(&one)));
        assert!(!Arc::ptr_eq(&first, &waiter(&other)));
    }

    /// A pipe that reports a signal, and the waiter that listens.
    fn signalled(interpreter: &Model) -> (Arc<Poller>, Arc<SignalPipe>, Arc<Waiter>) {
        let poller = Poller::new().unwrap();
        let (pipe, waiter) = (signals::pipe(&poller).unwrap(), poller.waiter());
        *interpreter.wakeup_fd.borrow_mut() = -1;
        (poller, pipe, waiter)
    }

    #[test]
    fn exception_of_a_handler_ends_the_wait() {
        let interpreter = Model::default();
        let (_poller, pipe, waiter) = signalled(&interpreter);
        *interpreter.handler.borrow_mut() = Some(Box::new(|| Err(Raised::Handler)));
        let ended = wait_with(&interpreter, Some(&pipe), &waiter, |_| WaitEnd::TimedOut, || false);
        assert_eq!(ended, Err(Raised::Handler));
        assert_eq!(*interpreter.wakeup_fd.borrow(), -1, "signals no longer go to the pipe");
    }

    #[test]
    fn interrupted_wait_goes_on_after_the_handlers() {
        let interpreter = Model::default();
        let (_poller, pipe, waiter) = signalled(&interpreter);
        let (waits, is_ready) = (AtomicUsize::new(0), AtomicBool::new(false));
        let wait = |_: &mut dyn FnMut() -> bool| {
            if waits.fetch_add(1, Ordering::Relaxed) == 0 { WaitEnd::Interrupted } else { WaitEnd::Ready }
        };
        let ended = wait_with(&interpreter, Some(&pipe), &waiter, wait, || is_ready.load(Ordering::Relaxed));
        assert_eq!((ended, waits.into_inner()), (Ok(Some(true)), 2));
    }

    #[test]
    fn killed_process_waits_no_longer() {
        let (interpreter, poller) = (Model::default(), Poller::new().unwrap());
        let ended = wait_with(&interpreter, None, &poller.waiter(), |_| WaitEnd::Killed, || false);
        assert_eq!(ended, Err(Raised::Hopeless(Hopeless::Killed)));
    }
}
