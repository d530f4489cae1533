//! The limit of threads, in the errors of threads and processes that the kernel does not start.

use std::io;

/// The limit on the threads of this user, as the end of an error; empty where the kernel applies none.
pub fn text() -> String {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a buffer of the right type. A failure leaves it unchanged.
    let user = unsafe {
        libc::getrlimit(libc::RLIMIT_NPROC, &mut limit);
        libc::getuid()
    };
    // The kernel does not limit root.
    if user == 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return String::new();
    }
    format!(" (RLIMIT_NPROC, which `ulimit -u` sets, is {})", limit.rlim_cur)
}

/// The error of a thread or process that was not started, with the limit if the limit may be the cause.
pub fn named(error: io::Error) -> io::Error {
    let limit = text();
    if error.raw_os_error() != Some(libc::EAGAIN) || limit.is_empty() {
        return error;
    }
    io::Error::new(error.kind(), format!("{error}{limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_errors_do_not_name_the_limit() {
        let error = named(io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn errors_of_short_resources_end_with_the_limit() {
        let error = io::Error::from_raw_os_error(libc::EAGAIN);
        let wanted = format!("{error}{}", text());
        assert_eq!(named(error).to_string(), wanted);
    }
}
