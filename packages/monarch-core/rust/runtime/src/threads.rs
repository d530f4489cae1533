//! Threads of this crate. They take no signals: signals are for the interpreter's main thread.

use std::io;

/// Starts a thread that takes no signals.
pub fn spawn_joinable(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    // SAFETY: the sigset operations use local sets; the new thread inherits the mask, which is restored afterwards.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let made = std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        made.map_err(net::thread_limit::named)
    }
}
