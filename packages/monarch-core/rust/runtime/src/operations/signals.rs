//! Signals that arrive while the main thread waits.
//!
//! A signal that arrives between the interpreter's last check and the blocking system call interrupts nothing, and a wait without other
//! events would not end. So while the main thread waits, the interpreter's signal handler writes to a pipe of this module, which the poller
//! watches.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use net::lock::lock;
use net::{Poller, Source, Waiter, sys};

use super::interpreter::Interpreter;

/// A pipe to which the interpreter's signal handler writes while the main thread waits.
pub struct SignalPipe {
    read: OwnedFd,
    write: OwnedFd,
    has_tripped: AtomicBool,
    waiter: Mutex<Option<Arc<Waiter>>>,
}

impl Source for SignalPipe {
    fn ready(&self, _events: u32) {
        let mut bytes = [0; 64];
        while sys::read(self.read.as_raw_fd(), &mut bytes).is_ok_and(|n| n == bytes.len()) {}
        self.has_tripped.store(true, Ordering::Release);
        if let Some(w) = &*lock(&self.waiter) {
            w.notify();
        }
    }
}

/// The pipe for the poller on which the main thread of this process waits.
static PIPE: OnceLock<Option<Arc<SignalPipe>>> = OnceLock::new();

thread_local! {
    /// The pipes of simulated worlds, which begin and end. Only those of the main thread are used.
    static PIPES: RefCell<Vec<(usize, Arc<SignalPipe>)>> = const { RefCell::new(Vec::new()) };
}

/// The pipe for the poller on which the main thread waits; `None` without descriptors.
pub fn pipe(poller: &Arc<Poller>) -> Option<Arc<SignalPipe>> {
    if poller.timeline().is_some() { simulated_pipe(poller) } else { PIPE.get_or_init(|| SignalPipe::new(poller)).clone() }
}

/// The pipe for the poller of a simulated world.
fn simulated_pipe(poller: &Arc<Poller>) -> Option<Arc<SignalPipe>> {
    let key = Arc::as_ptr(poller) as usize;
    PIPES.with(|pipes| {
        let mut pipes = pipes.borrow_mut();
        if let Some((_, p)) = pipes.iter().find(|(k, _)| *k == key) {
            return Some(p.clone());
        }
        let made = SignalPipe::new(poller)?;
        pipes.push((key, made.clone()));
        Some(made)
    })
}

/// Removes the pipe of a simulated poller that has ended.
pub fn forget(poller: &Arc<Poller>) {
    let key = Arc::as_ptr(poller) as usize;
    PIPES.with(|pipes| pipes.borrow_mut().retain(|(k, _)| *k != key));
}

/// Detaches a forked child: signals of the child must not wake a thread of the parent.
pub fn forget_in_child(interpreter: &impl Interpreter) {
    if let Some(Some(pipe)) = PIPE.get()
        && let Ok(set) = interpreter.set_wakeup_fd(-1)
        && set != pipe.write.as_raw_fd()
    {
        // The descriptor belongs to the user.
        let _ = interpreter.set_wakeup_fd(set);
    }
}

impl SignalPipe {
    /// Makes a pipe, and adds it to the poller; `None` without descriptors.
    fn new(poller: &Arc<Poller>) -> Option<Arc<SignalPipe>> {
        let (read, write) = sys::pipe().ok()?;
        sys::set_nonblocking(read.as_raw_fd()).ok()?;
        sys::set_nonblocking(write.as_raw_fd()).ok()?;
        let fd = read.as_raw_fd();
        let pipe = Arc::new(SignalPipe { read, write, has_tripped: AtomicBool::new(false), waiter: Mutex::default() });
        poller.add(poller.token(), fd, pipe.clone()).ok()?;
        Some(pipe)
    }

    /// True if a signal has arrived since the last call.
    pub fn take(&self) -> bool {
        self.has_tripped() && self.has_tripped.swap(false, Ordering::AcqRel)
    }

    pub fn has_tripped(&self) -> bool {
        self.has_tripped.load(Ordering::Acquire)
    }

    /// Lets signals wake `waiter` until `unlisten`. Returns the descriptor that was set before.
    pub fn listen<I: Interpreter>(&self, interpreter: &I, waiter: &Arc<Waiter>) -> Result<RawFd, I::Error> {
        {
            let mut current = lock(&self.waiter);
            if !current.as_ref().is_some_and(|w| Arc::ptr_eq(w, waiter)) {
                *current = Some(waiter.clone());
            }
        }
        interpreter.set_wakeup_fd(self.write.as_raw_fd())
    }

    /// Restores the descriptor that was set before `listen`.
    pub fn unlisten(interpreter: &impl Interpreter, before: RawFd) {
        // This call fails only where `listen` failed.
        let _ = interpreter.set_wakeup_fd(before);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::operations::interpreter::model::Model;

    #[test]
    fn signal_wakes_the_listening_waiter() {
        let poller = Poller::new().unwrap();
        let (pipe, waiter, interpreter) = (SignalPipe::new(&poller).unwrap(), poller.waiter(), Model::default());
        let before = pipe.listen(&interpreter, &waiter).unwrap();
        let fd = *interpreter.wakeup_fd.borrow();
        assert_eq!(fd, pipe.write.as_raw_fd());
        std::fs::File::from(pipe.write.try_clone().unwrap()).write_all(&[2]).unwrap();
        assert_eq!(poller.wait(&waiter, None, || pipe.has_tripped()), net::WaitEnd::Ready);
        assert!(pipe.take() && !pipe.take());
        SignalPipe::unlisten(&interpreter, before);
        assert_eq!(*interpreter.wakeup_fd.borrow(), before);
    }
}
