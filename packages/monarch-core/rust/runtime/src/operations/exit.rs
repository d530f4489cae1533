//! The exit of the process, after which threads must not continue as before.
//!
//! The main thread marks the process as leaving and later as exiting. From then on, threads that return from the runtime are blocked for
//! ever, because the interpreter would end them. User threads are blocked at the first mark, threads of the runtime at the second.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::shield::Shield;

/// How far the exit of a process has got.
#[derive(Default)]
struct Progress {
    /// The interpreter is ending: threads other than the main one must not take its lock.
    is_exiting: AtomicBool,
    /// The main thread runs its exit handlers: user threads receive no more notifications.
    is_leaving: AtomicBool,
}

impl Progress {
    const fn new() -> Self {
        Progress { is_exiting: AtomicBool::new(false), is_leaving: AtomicBool::new(false) }
    }

    /// True if a thread must be blocked.
    fn blocks(&self, is_main: bool, is_runtime: bool) -> bool {
        !is_main && (self.is_exiting.load(Ordering::Acquire) || self.is_leaving.load(Ordering::Acquire) && !is_runtime)
    }
}

/// The exit of this process.
static PROGRESS: Progress = Progress::new();

thread_local! {
    /// True on the main thread of the process.
    static IS_MAIN: bool = is_first_thread();
    /// This thread continues its work while the process exits.
    static IS_RUNTIME_THREAD: Cell<bool> = const { Cell::new(false) };
    /// The protection of this thread from `pthread_exit`.
    static SHIELD: Cell<Option<Box<Shield>>> = const { Cell::new(None) };
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
    while PROGRESS.is_exiting.load(Ordering::Acquire) {
        std::thread::park();
    }
}

/// Marks this thread as one of the runtime: it continues while the process exits.
pub fn set_runtime_thread() {
    shield_thread();
    IS_RUNTIME_THREAD.set(true);
}

/// Blocks this thread for ever if the process exits. After the exit has begun, a thread other than the main one must not take the lock of
/// the interpreter again: the interpreter would end it in the middle of Rust frames. The thread has no work left and ends with the process.
/// A user thread is blocked from the first exit handler on: no result matters to it any more. The caller must not hold the lock.
pub fn park_if_exiting() {
    if must_block() {
        loop {
            std::thread::park();
        }
    }
}

/// True if this thread must be blocked.
pub fn must_block() -> bool {
    PROGRESS.blocks(is_main_thread(), IS_RUNTIME_THREAD.get())
}

/// Marks the process as leaving: user threads that call into the runtime are blocked from now on.
pub fn begin_leaving() {
    PROGRESS.is_leaving.store(true, Ordering::Release);
}

/// Marks the process as exiting: threads that return from a wait are blocked from now on.
pub fn begin_exit() {
    PROGRESS.is_exiting.store(true, Ordering::Release);
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
pub fn set_exit_code(code: i32) {
    if EXIT_CODE.swap(code, Ordering::AcqRel) == 0 {
        // SAFETY: `leave` is a plain function that stays loaded as long as the process lives.
        unsafe { libc::atexit(leave) };
    }
}

/// Makes the kernel kill this process when its parent ends; false if the parent has ended already.
pub fn set_parent_death_signal(parent: i32) -> bool {
    // SAFETY: the calls take no pointers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() == parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_blocks_user_threads_first() {
        let progress = Progress::default();
        let blocked = || [false, true].map(|is_runtime| progress.blocks(false, is_runtime));
        assert_eq!(blocked(), [false, false]);
        progress.is_leaving.store(true, Ordering::Release);
        assert_eq!(blocked(), [true, false]);
        progress.is_exiting.store(true, Ordering::Release);
        assert_eq!(blocked(), [true, true]);
        assert!(!progress.blocks(true, false), "the main thread carries out the exit");
    }

    #[test]
    fn thread_of_a_test_is_no_main_thread() {
        assert!(!std::thread::spawn(is_main_thread).join().unwrap());
    }
}
