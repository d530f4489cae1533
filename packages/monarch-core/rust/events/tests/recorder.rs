//! The recorder of a process: off, on, off, and inert in a forked child.

use std::os::fd::AsRawFd;

use events::{Reader, Value, change, is_on, now_if_on, queue_depth, start, stop, user_event};

// One test only, because a process has one recorder.
#[test]
fn process_records_while_on_and_its_child_never() {
    assert!(!is_on() && now_if_on() == 0);
    queue_depth(1, 1);
    change();
    let fd = start(5, 256).unwrap().unwrap();
    let mut reader = Reader::open(fd.as_raw_fd()).unwrap();
    assert!(is_on() && now_if_on() > 0);
    queue_depth(1, 2);
    change();
    stop();
    queue_depth(1, 3);
    // The set of rings of an agent changes whether the agent records or not.
    change();
    assert_eq!(reader.changes(), 2);
    // The same ring again.
    assert!(start(5, 1024).unwrap().is_none());
    user_event(b"step", b"{}");
    // SAFETY: the child only stores to memory, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        queue_depth(1, 4);
        change();
        let refused = start(5, 256).is_err();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(is_on() || !refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    queue_depth(1, 5);
    assert_eq!(reader.changes(), 2);
    let fields: Vec<_> = reader.read(10, false).into_iter().map(|r| r.fields).collect();
    let depth = |n| vec![Value::Number(1), Value::Number(n)];
    assert_eq!(fields, [depth(2), vec![Value::Text("step".into()), Value::Text("{}".into())], depth(5)]);
}
