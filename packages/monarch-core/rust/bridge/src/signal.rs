//! Signals that arrive while the main thread blocks in native code.
//!
//! A signal that arrives between the interpreter's last check and the blocking system call interrupts nothing, and a wait without other
//! events would not end. So while the main thread waits, Python's C handler writes to a pipe of this module, which the poller watches.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use net::{Poller, Source, Waiter, sys};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A Ctrl-C has arrived since `run_at_exit` installed its handler.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: std::ffi::c_int) {
    INTERRUPTED.store(true, Ordering::Release);
}

/// Runs an exit handler with Ctrl-C deferred from before its first instruction. A Ctrl-C that has arrived already counts.
#[pyfunction]
pub fn run_at_exit(handler: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = handler.py();
    if crate::fork::is_forked() {
        return Ok(());
    }
    // SAFETY: `note` only stores to an atomic.
    unsafe { libc::signal(libc::SIGINT, note as extern "C" fn(std::ffi::c_int) as libc::sighandler_t) };
    if let Err(e) = py.check_signals() {
        if !e.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(e);
        }
        INTERRUPTED.store(true, Ordering::Release);
    }
    handler.call0().map(drop)
}

/// True if a Ctrl-C has arrived during the exit.
#[pyfunction]
pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// A pipe to which Python's C handler writes while the main thread waits.
pub struct SignalPipe {
    read: OwnedFd,
    write: OwnedFd,
    tripped: AtomicBool,
    waiter: Mutex<Option<Arc<Waiter>>>,
}

impl Source for SignalPipe {
    fn ready(&self, _events: u32) {
        let mut bytes = [0; 64];
        while sys::read(self.read.as_raw_fd(), &mut bytes).is_ok_and(|n| n == bytes.len()) {}
        self.tripped.store(true, Ordering::Release);
        if let Some(w) = &*self.waiter.lock().unwrap_or_else(PoisonError::into_inner) {
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

/// The pipe for the poller of this process.
pub fn pipe(poller: &Arc<Poller>) -> Option<&'static Arc<SignalPipe>> {
    PIPE.get_or_init(|| make(poller)).as_ref()
}

/// The pipe for the poller of a simulated world.
pub fn simulated_pipe(poller: &Arc<Poller>) -> Option<Arc<SignalPipe>> {
    let key = Arc::as_ptr(poller) as usize;
    PIPES.with(|pipes| {
        let mut pipes = pipes.borrow_mut();
        if let Some((_, p)) = pipes.iter().find(|(k, _)| *k == key) {
            return Some(p.clone());
        }
        let made = make(poller)?;
        pipes.push((key, made.clone()));
        Some(made)
    })
}

/// Removes the pipe of a simulated poller that has ended.
pub fn forget(poller: &Arc<Poller>) {
    let key = Arc::as_ptr(poller) as usize;
    PIPES.with(|pipes| pipes.borrow_mut().retain(|(k, _)| *k != key));
}

/// Makes a pipe, and adds it to the poller.
fn make(poller: &Arc<Poller>) -> Option<Arc<SignalPipe>> {
    let (read, write) = sys::pipe().ok()?;
    sys::set_nonblocking(read.as_raw_fd()).ok()?;
    sys::set_nonblocking(write.as_raw_fd()).ok()?;
    let fd = read.as_raw_fd();
    let pipe = Arc::new(SignalPipe { read, write, tripped: AtomicBool::new(false), waiter: Mutex::default() });
    poller.add(poller.token(), fd, pipe.clone()).ok()?;
    Some(pipe)
}

/// Detaches a forked child: signals of the child must not wake a thread of the parent.
pub fn forget_in_child(py: Python<'_>) {
    if let Some(Some(pipe)) = PIPE.get()
        && let Ok(set) = set_wakeup_fd(py, -1)
        && set != pipe.write.as_raw_fd()
    {
        // The descriptor belongs to the user.
        let _ = set_wakeup_fd(py, set);
    }
}

impl SignalPipe {
    /// True if a signal has arrived since the last call.
    pub fn take(&self) -> bool {
        self.tripped.load(Ordering::Acquire) && self.tripped.swap(false, Ordering::AcqRel)
    }

    pub fn tripped(&self) -> bool {
        self.tripped.load(Ordering::Acquire)
    }

    /// Lets signals wake `waiter` until `unlisten`. Returns the descriptor that was set before.
    pub fn listen(&self, py: Python<'_>, waiter: &Arc<Waiter>) -> PyResult<i32> {
        {
            let mut current = self.waiter.lock().unwrap_or_else(PoisonError::into_inner);
            if !current.as_ref().is_some_and(|w| Arc::ptr_eq(w, waiter)) {
                *current = Some(waiter.clone());
            }
        }
        set_wakeup_fd(py, self.write.as_raw_fd())
    }

    /// Restores the descriptor that was set before `listen`.
    pub fn unlisten(py: Python<'_>, before: i32) {
        // This call fails only where `listen` failed.
        let _ = set_wakeup_fd(py, before);
    }
}

/// `signal.set_wakeup_fd`. It is set when the module is loaded, before any thread of the runtime. Otherwise a fork could interrupt the
/// thread that sets it, and the child would wait for that thread for ever.
static SET_WAKEUP_FD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Sets what this module needs, when the extension module is loaded.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    SET_WAKEUP_FD.get_or_try_init(py, || py.import("_signal")?.getattr("set_wakeup_fd").map(Bound::unbind)).map(drop)
}

fn set_wakeup_fd(py: Python<'_>, fd: i32) -> PyResult<i32> {
    let f = SET_WAKEUP_FD.get(py).ok_or_else(|| PyRuntimeError::new_err("the native module is not loaded"))?;
    f.bind(py).call1((fd,))?.extract()
}
