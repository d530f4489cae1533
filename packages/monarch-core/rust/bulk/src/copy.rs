//! The loops that move bytes.

use std::io;

use crate::sys;

/// Moves bytes inside this process.
///
/// # Safety
/// Both ranges are valid, the second one for writing. Others may change them meanwhile: what arrives is then some of both, and nothing
/// is read from it here.
pub unsafe fn memory(from: usize, to: usize, len: usize) {
    // SAFETY: the caller's promise. By the C library, which knows the fastest way on this processor, and allows overlap.
    unsafe { libc::memmove(to as *mut libc::c_void, from as *const libc::c_void, len) };
}

/// Of one call. Whoever is in one when a process has left its memory takes all of that back for the kernel, 0.1 s for each GiB: it has
/// to be left before, in the moment between the end of the first thread and that of the last.
const CALL: usize = 1 << 20;

/// Moves bytes between this process and another one, until that `is_over`; an error comes with how many were moved before it.
///
/// # Safety
/// The local range is valid, and for writing unless `write`.
pub unsafe fn process(
    pid: i32,
    write: bool,
    local: usize,
    remote: u64,
    len: usize,
    is_over: impl Fn() -> bool,
) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < len {
        // SAFETY: a part of the caller's range.
        match unsafe { sys::process_vm(pid, write, local + done, remote + done as u64, CALL.min(len - done)) } {
            // A part that was moved is followed by the error of the rest.
            Ok(n) if n > 0 => {
                done += n.min(len - done);
                if done < len && is_over() {
                    return Err((done, io::Error::from_raw_os_error(libc::ESRCH)));
                }
            }
            Ok(_) => return Err((done, io::Error::from_raw_os_error(libc::EFAULT))),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((done, e)),
        }
    }
    Ok(())
}
