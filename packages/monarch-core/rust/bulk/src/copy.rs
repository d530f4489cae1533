//! The loops that copy bytes.

use std::io;

use crate::grid::{Grid, Row};
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

/// Copies runs of this process: `from` and `to` are the addresses of the first run, and the steps to the next one.
///
/// # Safety
/// All runs are valid, those of `to` for writing. Other threads may change them during the copy, as with `memory`.
unsafe fn row((mut from, from_step): (usize, isize), (mut to, to_step): (usize, isize), run: usize, count: u64) {
    /// Copies runs that are one item.
    ///
    /// # Safety
    /// As for `row`.
    unsafe fn items<T>((mut from, from_step): (usize, isize), (mut to, to_step): (usize, isize), count: u64) {
        for _ in 0..count {
            // SAFETY: the caller's guarantee.
            unsafe { (to as *mut T).write_unaligned((from as *const T).read_unaligned()) };
            (from, to) = (from.wrapping_add_signed(from_step), to.wrapping_add_signed(to_step));
        }
    }
    // SAFETY: the caller's guarantee. A call of `memmove` takes longer than the copy of one item.
    unsafe {
        match run {
            1 => items::<u8>((from, from_step), (to, to_step), count),
            2 => items::<u16>((from, from_step), (to, to_step), count),
            4 => items::<u32>((from, from_step), (to, to_step), count),
            8 => items::<u64>((from, from_step), (to, to_step), count),
            16 => items::<u128>((from, from_step), (to, to_step), count),
            _ => {
                for _ in 0..count {
                    memory(from, to, run);
                    (from, to) = (from.wrapping_add_signed(from_step), to.wrapping_add_signed(to_step));
                }
            }
        }
    }
}

/// Copies `len` bytes of a grid from byte `start` on, inside this process. `there` and `here` are the addresses of its first byte in the
/// buffer and in local memory; a write goes from the latter to the former.
///
/// # Safety
/// The section is valid in both memories, for writing in the one that changes.
pub unsafe fn section(grid: &Grid, (there, here): (usize, usize), write: bool, start: u64, len: u64) {
    for r in grid.rows(start, len) {
        let remote = (there.wrapping_add(r.there as usize), r.there_step as isize);
        let local = (here.wrapping_add_signed(r.here as isize), r.here_step as isize);
        let (from, to) = if write { (local, remote) } else { (remote, local) };
        // SAFETY: the caller's guarantee: rows are parts of the section.
        unsafe { row(from, to, r.run as usize, r.count) };
    }
}

/// Copies runs into contiguous memory.
///
/// # Safety
/// The runs are valid, and so is `to` with their bytes, for writing.
pub unsafe fn gather(first: usize, r: &Row, to: usize) {
    // SAFETY: the caller's guarantee.
    unsafe { row((first, r.there_step as isize), (to, r.run as isize), r.run as usize, r.count) };
}

/// Copies contiguous memory into runs.
///
/// # Safety
/// The runs are valid for writing, and so is `from` with their bytes for reading.
pub unsafe fn scatter(from: usize, first: usize, r: &Row) {
    // SAFETY: the caller's guarantee.
    unsafe { row((from, r.run as isize), (first, r.here_step as isize), r.run as usize, r.count) };
}

/// Copies `len` bytes of a grid from byte `start` on, between this process and another one, until `has_ended`. An error contains the
/// number of bytes copied before it.
///
/// # Safety
/// The section is valid in local memory, and for writing unless `write`.
pub unsafe fn process_section(
    pid: i32,
    write: bool,
    grid: &Grid,
    (there, here): (u64, usize),
    (start, len): (u64, u64),
    has_ended: impl Fn() -> bool,
) -> Result<(), (usize, io::Error)> {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < len {
        near.clear();
        far.clear();
        let mut bytes = 0;
        'call: for r in grid.rows(start + done, (len - done).min(CALL as u64)) {
            for i in 0..r.count {
                let local = here.wrapping_add_signed((r.here + i as i64 * r.here_step) as isize);
                near.push(libc::iovec { iov_base: local as *mut libc::c_void, iov_len: r.run as usize });
                let remote = (there + r.there + i * r.there_step) as usize;
                far.push(libc::iovec { iov_base: remote as *mut libc::c_void, iov_len: r.run as usize });
                bytes += r.run;
                if near.len() == libc::UIO_MAXIOV as usize {
                    break 'call;
                }
            }
        }
        // SAFETY: the caller's guarantee.
        match unsafe { sys::process_vm_runs(pid, write, &near, &far) } {
            Ok(n) if n > 0 => {
                done += (n as u64).min(bytes);
                if done < len && has_ended() {
                    return Err((done as usize, io::Error::from_raw_os_error(libc::ESRCH)));
                }
            }
            Ok(_) => return Err((done as usize, io::Error::from_raw_os_error(libc::EFAULT))),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((done as usize, e)),
        }
    }
    Ok(())
}
