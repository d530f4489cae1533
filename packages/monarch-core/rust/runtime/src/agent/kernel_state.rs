//! The state of a process in the kernel, from `/proc`: its state, its wait status, its memory.

use std::time::Instant;

/// The seconds that have passed since then.
pub(crate) fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// The probable reason why Python does not run in a process, from the kernel's state of the process.
pub(crate) fn why_unresponsive(pid: u32) -> &'static str {
    match kernel_state(pid) {
        Some('T' | 't') => "stopped by a signal",
        Some('D') => "in an uninterruptible wait of the kernel",
        _ => "something keeps the GIL, or the machine is overloaded",
    }
}

/// The letter after the last parenthesis of `/proc/PID/stat`.
pub(crate) fn kernel_state(pid: u32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// The wait status of an exited process that its parent has not reaped yet, as from `waitpid`.
pub(crate) fn exit_status(pid: u32) -> Option<i32> {
    /// `exit_code` is the 52nd field (proc_pid_stat(5)). The index counts from the state, which is the third field.
    const EXIT_CODE: usize = 49;
    let stat = stat(pid).filter(|s| s.starts_with('Z'))?;
    stat.split_ascii_whitespace().nth(EXIT_CODE)?.parse().ok()
}

/// The fields of `/proc/PID/stat` after the process name, which may contain any character.
fn stat(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.trim_start().to_owned())
}

/// Resident memory of a process in bytes.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * net::sys::page() as u64)
}
