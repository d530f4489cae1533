//! The loops that copy bytes.

use std::io;

use crate::sys;

/// Copies bytes inside this process.
///
/// # Safety
/// Both ranges are valid, the second one for writing. Other threads may change them during the copy. The result is then a mix of
/// old and new bytes, which this function does not interpret.
pub unsafe fn memory(from: usize, to: usize, len: usize) {
    // SAFETY: the caller's guarantee. `memmove` is the fastest copy on each processor, and allows overlap.
    unsafe { libc::memmove(to as *mut libc::c_void, from as *const libc::c_void, len) };
}

/// Bytes of one call. A call that runs while the other process gives up its memory has to free that memory, which takes 0.1 s for each GiB.
/// Short calls let this process stop in time: between the end of the owner's first thread and that of its last.
const CALL: usize = 1 << 20;

/// Copies bytes between this process and another one, until `has_ended`. An error contains the number of bytes copied before it.
///
/// # Safety
/// The local range is valid, and for writing unless `write`.
pub unsafe fn process(
    pid: i32,
    write: bool,
    local: usize,
    remote: u64,
    len: usize,
    has_ended: impl Fn() -> bool,
) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < len {
        // SAFETY: a part of the caller's range.
        match unsafe { sys::process_vm(pid, write, local + done, remote + done as u64, CALL.min(len - done)) } {
            // After a partial copy, the next call returns the error of the rest.
            Ok(n) if n > 0 => {
                done += n.min(len - done);
                if done < len && has_ended() {
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
