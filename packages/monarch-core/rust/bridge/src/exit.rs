//! The exit of the process, after which threads must not continue as before.
//!
//! The main thread marks the process as leaving and later as exiting. From then on, threads that return from the runtime are blocked for
//! ever, because the interpreter would end them. User threads are blocked at the first mark, threads of the runtime at the second.

use std::cell::Cell as StdCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use pyo3::prelude::*;

use crate::shield::Shield;

/// The interpreter is ending: threads other than the main one must not take the GIL.
static EXITING: AtomicBool = AtomicBool::new(false);
/// The main thread runs its exit handlers: user threads receive no more notifications.
static IN_EXIT_HANDLERS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True on the main thread of the process.
    static IS_MAIN: bool = is_first_thread();
    /// This thread continues its work while the process exits.
    static IS_RUNTIME_THREAD: StdCell<bool> = const { StdCell::new(false) };
    /// The protection of this thread from `pthread_exit`.
    static SHIELD: StdCell<Option<Box<Shield>>> = const { StdCell::new(None) };
}

fn is_first_thread() -> bool {
    // SAFETY: the calls have no arguments, and return integers.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}

/// True on the main thread of the process.
pub fn is_main_thread() -> bool {
    IS_MAIN.with(|m| *m)
}

/// Protects this thread from `pthread_exit`, once. The main thread needs no protection.
pub fn shield_thread() {
    SHIELD.with(|s| {
        let held = s.take().unwrap_or_else(|| if is_main_thread() { Shield::none() } else { Shield::push(park_while_exiting) });
        s.set(Some(held));
    });
}

extern "C" fn park_while_exiting(_: *mut c_void) {
    while EXITING.load(Ordering::Acquire) {
        std::thread::park();
    }
}

/// Marks this thread as one of the runtime: it continues while the process exits.
#[pyfunction]
pub fn set_runtime_thread() {
    shield_thread();
    IS_RUNTIME_THREAD.set(true);
}

/// Blocks this thread for ever if the process exits. After the exit has begun, a thread other than the main one must not take the GIL
/// again: the interpreter would end it in the middle of Rust frames. The thread has no work left and ends with the process. A user thread
/// is blocked from the first exit handler on: no result matters to it any more. The caller must not hold the GIL.
pub fn park_if_exiting() {
    if must_block() {
        loop {
            std::thread::park();
        }
    }
}

/// True if this thread must be blocked.
pub fn must_block() -> bool {
    (EXITING.load(Ordering::Acquire) || IN_EXIT_HANDLERS.load(Ordering::Acquire) && !IS_RUNTIME_THREAD.get()) && !is_main_thread()
}

/// Blocks this thread as `park_if_exiting` does. The caller holds the GIL, which is released.
#[pyfunction]
pub fn block_if_exiting(py: Python<'_>) {
    if must_block() {
        py.detach(park_if_exiting);
    }
}

/// Marks the process as leaving: user threads that call into the runtime are blocked from now on.
#[pyfunction]
pub fn begin_leaving() {
    IN_EXIT_HANDLERS.store(true, Ordering::Release);
}

/// Marks the process as exiting: threads that return from a wait are blocked from now on.
#[pyfunction]
pub fn begin_exit() {
    EXITING.store(true, Ordering::Release);
}

/// The exit code of the process; 0 if none is set.
static EXIT_CODE: AtomicI32 = AtomicI32::new(0);

/// The exit code that a shell shows for a process that Ctrl-C has ended.
const INTERRUPTED: i32 = 128 + libc::SIGINT;

extern "C" fn leave() {
    let code = EXIT_CODE.load(Ordering::Acquire);
    // SAFETY: no code of this process runs after this call.
    unsafe {
        if code == INTERRUPTED {
            // The interpreter does the same: the parent sees that Ctrl-C ended the process, and a shell ends its script.
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::kill(libc::getpid(), libc::SIGINT);
        }
        libc::_exit(code)
    }
}

/// Sets the exit code of the process, whatever code it requests, when the interpreter has ended; 130 ends it by SIGINT.
#[pyfunction]
pub fn set_exit_code(code: i32) {
    if EXIT_CODE.swap(code, Ordering::AcqRel) == 0 {
        // SAFETY: `leave` is a plain function that stays loaded as long as the process lives.
        unsafe { libc::atexit(leave) };
    }
}

/// Makes the kernel kill this process when its parent ends; false if the parent has ended already.
#[pyfunction]
pub fn set_parent_death_signal(parent: i32) -> bool {
    // SAFETY: the calls take no pointers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() == parent
    }
}
