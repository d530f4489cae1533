//! Blocking without the GIL, and the two events after which threads must not continue as before: the exit of the process, and a fork.
//!
//! Every blocking call of the bridge goes through `blocking` or `wait`. After the exit has begun, threads that return from it are blocked
//! for ever, because the interpreter would end them. A forked child has none of the runtime's threads: calls raise an error in it.

use std::cell::Cell as StdCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use net::{Poller, WaitEnd, Waiter};
use pyo3::exceptions::{PyRuntimeError, PySystemExit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use runtime::Mailbox;

use crate::signal::{self, SignalPipe};

/// The interpreter is ending: threads other than the main one must not take the GIL.
static EXITING: AtomicBool = AtomicBool::new(false);
/// The main thread runs its exit handlers: user threads receive no more notifications.
static IN_EXIT_HANDLERS: AtomicBool = AtomicBool::new(false);
/// The process that this one was forked from while that process had a runtime; 0 if there is none.
static FORKED_FROM: AtomicU32 = AtomicU32::new(0);

/// The actor whose code this thread runs, as the sender of messages.
pub struct Sender {
    pub mailbox: Option<Arc<Mailbox>>,
    pub on_loop: bool,
}

/// The sender between calls. A thread's variables are dropped after its last Python code, when no component waits for the thread. They own
/// no mailbox, because a mailbox's messages and descriptors belong to the runtime.
struct ThreadSender {
    id: u64,
    mailbox: Weak<Mailbox>,
    on_loop: bool,
}

thread_local! {
    /// True on the main thread of the process.
    static IS_MAIN: bool = is_main_thread();
    /// A weak reference and not an address: the poller of a simulated world can be followed by another one at the same address, with
    /// another eventfd.
    static WAITER: StdCell<Option<(Weak<Poller>, Arc<Waiter>)>> = const { StdCell::new(None) };
    /// The actor that this thread belongs to.
    static SENDER: StdCell<Option<ThreadSender>> = const { StdCell::new(None) };
    /// This thread continues its work while the process exits.
    static IS_RUNTIME_THREAD: StdCell<bool> = const { StdCell::new(false) };
    /// The clean-up handler of this thread.
    static SHIELD: StdCell<Option<Box<shield::Buffer>>> = const { StdCell::new(None) };
}

/// Until Python 3.14 a thread that requests the GIL while the interpreter ends is ended with `pthread_exit`, whose unwinding aborts the
/// process when it reaches Rust frames. A handler in the C library's own clean-up list runs before any unwinding, and can block the thread
/// instead.
mod shield {
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::Ordering;

    /// `struct _pthread_cleanup_buffer` of glibc. A buffer on the heap counts as left by whichever frame is unwound first.
    #[repr(C)]
    pub struct Buffer {
        routine: Option<extern "C" fn(*mut c_void)>,
        arg: *mut c_void,
        cancel_type: c_int,
        previous: *mut Buffer,
    }

    impl Buffer {
        pub fn empty() -> Box<Self> {
            Box::new(Buffer { routine: None, arg: std::ptr::null_mut(), cancel_type: 0, previous: std::ptr::null_mut() })
        }
    }

    extern "C" fn stay(_: *mut c_void) {
        while super::EXITING.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    #[cfg(target_env = "gnu")]
    pub fn push(buffer: &mut Buffer) {
        unsafe extern "C" {
            fn _pthread_cleanup_push(buffer: *mut Buffer, routine: extern "C" fn(*mut c_void), arg: *mut c_void);
        }
        // SAFETY: the buffer lives in a thread-local box until after the last use of the list.
        unsafe { _pthread_cleanup_push(buffer, stay, std::ptr::null_mut()) };
    }

    #[cfg(not(target_env = "gnu"))]
    pub fn push(_: &mut Buffer) {}
}

/// Protects this thread from `pthread_exit`, once. The main thread needs no protection.
fn shield_thread() {
    SHIELD.with(|s| {
        let held = s.take().unwrap_or_else(|| {
            let mut buffer = shield::Buffer::empty();
            if !IS_MAIN.with(|m| *m) {
                shield::push(&mut buffer);
            }
            buffer
        });
        s.set(Some(held));
    });
}

/// The sender of messages of this thread.
pub fn sender() -> Option<Sender> {
    SENDER.with(|s| {
        let v = s.take();
        let found = v.as_ref().map(|v| Sender { mailbox: v.mailbox.upgrade(), on_loop: v.on_loop });
        s.set(v);
        found
    })
}

/// The id of the sender's mailbox; 0 if the thread belongs to no actor.
pub fn sender_id() -> u64 {
    SENDER.with(|s| {
        let v = s.take();
        let id = v.as_ref().map_or(0, |v| v.id);
        s.set(v);
        id
    })
}

/// Marks this thread as one of the runtime: it continues while the process exits.
#[pyfunction]
pub fn set_runtime_thread() {
    shield_thread();
    IS_RUNTIME_THREAD.set(true);
}

/// Sets the actor that this thread belongs to.
#[pyfunction]
pub fn set_thread_sender(mailbox: &crate::actor::ActorMailbox, on_loop: bool) {
    set_runtime_thread();
    SENDER.set(Some(ThreadSender { id: mailbox.inner.id.0, mailbox: Arc::downgrade(&mailbox.inner), on_loop }));
}

/// The waiter of this thread for blocking calls.
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

fn is_main_thread() -> bool {
    // SAFETY: the calls have no arguments, and return integers.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
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
fn must_block() -> bool {
    (EXITING.load(Ordering::Acquire) || IN_EXIT_HANDLERS.load(Ordering::Acquire) && !IS_RUNTIME_THREAD.get()) && !IS_MAIN.with(|m| *m)
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

/// Runs `f` without the GIL.
pub fn blocking<T: Send>(py: Python<'_>, f: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let r = f();
        park_if_exiting();
        r
    })
}

/// Waits until `ready` is true, and runs signal handlers when they are due; false after the deadline.
pub fn wait(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<bool> {
    wait_as(py, poller, waiter, deadline, true, ready)
}

/// Waits as `wait` does. With `lead`, the thread may read the sockets meanwhile.
pub fn wait_as(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    lead: bool,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<bool> {
    let wait = |done: &mut dyn FnMut() -> bool| {
        if lead { poller.wait(waiter, deadline, done) } else { poller.follow(waiter, deadline, done) }
    };
    wait_until(py, poller, waiter, wait, ready)?.ok_or_else(deadlock_error)
}

/// Waits as `wait` does, for an answer: the thread checks for itself from time to time, and a lost notification is recorded.
pub fn wait_for_answer(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<bool> {
    let wait = |done: &mut dyn FnMut() -> bool| match poller.wait_announced(waiter, deadline, done) {
        WaitEnd::Unannounced => {
            events::wakeup_lost(sender_id(), b"call", 0, 0);
            WaitEnd::Ready
        }
        end => end,
    };
    wait_until(py, poller, waiter, wait, ready)?.ok_or_else(deadlock_error)
}

/// The error of a wait that can never end.
fn deadlock_error() -> PyErr {
    PyRuntimeError::new_err("this would wait for ever: every thread of the universe waits, no message is in flight and no time-out is due")
}

/// Waits as `wait` does; `None` if nothing can happen any more, which can be known only in simulated time.
pub fn wait_quiet(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<Option<bool>> {
    wait_until(py, poller, waiter, |done| poller.wait(waiter, deadline, done), ready)
}

/// Waits by `wait` until `ready` is true, and runs signal handlers on the main thread; `None` if nothing can happen any more.
fn wait_until(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    wait: impl Fn(&mut dyn FnMut() -> bool) -> WaitEnd + Sync,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<Option<bool>> {
    let of_world;
    let pipe: Option<&SignalPipe> = if !IS_MAIN.with(|m| *m) {
        None
    } else if poller.timeline().is_none() {
        signal::pipe(poller).map(|p| &**p)
    } else {
        of_world = signal::simulated_pipe(poller);
        of_world.as_deref()
    };
    loop {
        let before = match pipe {
            Some(p) => {
                let before = p.listen(py, waiter)?;
                // Handles the signals that arrived before the thread began to listen.
                py.check_signals().inspect_err(|_| SignalPipe::unlisten(py, before))?;
                Some(before)
            }
            None => None,
        };
        let mut done = || ready() || pipe.is_some_and(|p| p.tripped());
        let end = blocking(py, || wait(&mut done));
        if let Some(fd) = before {
            SignalPipe::unlisten(py, fd);
        }
        let signalled = pipe.is_some_and(|p| p.take());
        if signalled || end == WaitEnd::Interrupted {
            py.check_signals()?;
        }
        match end {
            WaitEnd::Ready if !signalled || ready() => return Ok(Some(true)),
            WaitEnd::TimedOut => return Ok(Some(false)),
            WaitEnd::Stuck => return Ok(None),
            WaitEnd::Killed => return Err(PySystemExit::new_err("the simulated process of this thread has been killed")),
            _ => {}
        }
    }
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

/// The function that ends a forked child whose user code has returned to the runtime. It does not return.
static LEAVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Makes this process, a fork of `parent`, inert. `process` was the runtime of the parent; `leave()` ends a child whose user code returns
/// to the runtime.
#[pyfunction]
#[pyo3(signature = (parent, leave, process=None))]
pub fn after_fork_in_child(py: Python<'_>, parent: u32, leave: Py<PyAny>, process: Option<&crate::process::Process>) {
    FORKED_FROM.store(parent, Ordering::Release);
    net::forked_child::become_child();
    let _ = LEAVE.set(py, leave);
    signal::forget_in_child(py);
    if let Some(p) = process {
        p.node.close_in_child();
    }
}

/// True in a fork of a process that had a runtime.
pub fn is_forked() -> bool {
    FORKED_FROM.load(Ordering::Acquire) != 0
}

/// Ends a forked child whose user code has returned to a loop of the runtime, or has raised an exception into it.
pub fn exit_forked_child(py: Python<'_>, raised: Option<&PyErr>) {
    if is_forked() {
        if let Some(leave) = LEAVE.get(py) {
            let _ = leave.call1(py, (raised.map(|e| e.value(py)),));
        }
        // SAFETY: no code of this process runs after this call.
        unsafe { libc::_exit(1) };
    }
}

/// The check at the beginning of every call from a user thread.
pub fn check_not_forked() -> PyResult<()> {
    shield_thread();
    if must_block() {
        Python::attach(block_if_exiting);
    }
    match FORKED_FROM.load(Ordering::Acquire) {
        0 => Ok(()),
        pid => Err(PyRuntimeError::new_err(format!(
            "process {} was forked from process {pid}, which was using Monarch: \
             use the multiprocessing start method `spawn` or `forkserver`",
            std::process::id()
        ))),
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

/// After `delay_secs`, a native thread takes the GIL of this process and keeps it for `hold_secs`.
#[pyfunction]
pub fn hold_gil(delay_secs: f64, hold_secs: f64) {
    let (delay, hold) = (Duration::from_secs_f64(delay_secs.max(0.0)), Duration::from_secs_f64(hold_secs.max(0.0)));
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        park_if_exiting();
        Python::attach(|_| std::thread::sleep(hold));
    });
}
