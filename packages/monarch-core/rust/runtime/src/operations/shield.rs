//! The protection of a thread from `pthread_exit`.
//!
//! Until Python 3.14 a thread that requests the GIL while the interpreter ends is ended with `pthread_exit`, whose unwinding aborts the
//! process when it reaches Rust frames. A handler in the C library's own clean-up list runs before any unwinding, and can block the thread
//! instead.

use std::ffi::{c_int, c_void};

/// `struct _pthread_cleanup_buffer` of glibc. A buffer on the heap counts as left by whichever frame is unwound first.
#[repr(C)]
pub struct Shield {
    routine: Option<extern "C" fn(*mut c_void)>,
    arg: *mut c_void,
    cancel_type: c_int,
    previous: *mut Shield,
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn _pthread_cleanup_push(buffer: *mut Shield, routine: extern "C" fn(*mut c_void), arg: *mut c_void);
}

impl Shield {
    /// No protection.
    pub fn none() -> Box<Self> {
        Box::new(Shield { routine: None, arg: std::ptr::null_mut(), cancel_type: 0, previous: std::ptr::null_mut() })
    }

    /// Runs `routine` when this thread is ended. The box must be kept in a variable of this thread until the thread's end.
    pub fn push(routine: extern "C" fn(*mut c_void)) -> Box<Self> {
        let mut shield = Shield::none();
        #[cfg(target_env = "gnu")]
        // SAFETY: the shield lives in a thread-local box until after the last use of the list.
        unsafe {
            _pthread_cleanup_push(&mut *shield, routine, std::ptr::null_mut())
        };
        shield
    }
}
