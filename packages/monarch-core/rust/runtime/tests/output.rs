//! What procs print, from their pipes to the console.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use net::sys;
use runtime::output::{Output, Stream, Tail};

const HANG: Duration = Duration::from_secs(30);

struct Proc {
    output: Output,
    pipe: File,
    console: File,
    stream: Arc<Stream>,
    tail: Arc<Tail>,
    _console_end: OwnedFd,
}

fn proc(prefix: &str, keep: usize) -> Proc {
    let output = Output::new().unwrap();
    let (read, write) = sys::pipe().unwrap();
    let (console, end) = sys::pipe().unwrap();
    let tail = Tail::new(keep);
    let stream = output.add(read, end.as_raw_fd(), prefix, tail.clone()).unwrap();
    Proc { output, pipe: write.into(), console: console.into(), stream, tail, _console_end: end }
}

impl Proc {
    fn reads(&mut self, want: &str) {
        let mut got = vec![0; want.len()];
        self.console.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), want);
    }
}

#[test]
fn lines_come_out_whole_with_their_prefix() {
    let mut p = proc("[a 0] ", 10);
    p.pipe.write_all(b"one\ntw").unwrap();
    p.reads("[a 0] one\n");
    p.pipe.write_all(b"o\n\n").unwrap();
    p.reads("[a 0] two\n[a 0] \n");
    assert_eq!(p.tail.lines(), ["one", "two", ""]);
}

#[test]
fn the_last_line_needs_no_end() {
    let mut p = proc("> ", 10);
    p.pipe.write_all(b"last words").unwrap();
    p.pipe = File::from(sys::pipe().unwrap().1);
    p.reads("> last words\n");
    assert_eq!(p.tail.lines(), ["last words"]);
}

#[test]
fn long_lines_are_cut() {
    let mut p = proc("", 10);
    let (full, long) = ("x".repeat(4096), "y".repeat(5000));
    p.pipe.write_all(format!("{full}\n{long}\nshort\n").as_bytes()).unwrap();
    p.reads(&format!("{full}\n{}[TRUNCATED]\nshort\n", &long[..4096]));
}

#[test]
fn the_tail_keeps_the_last_lines() {
    let mut p = proc("", 2);
    p.pipe.write_all(b"1\n2\n3\n").unwrap();
    p.reads("1\n2\n3\n");
    assert_eq!(p.tail.lines(), ["2", "3"]);
    let mut none = proc("", 0);
    none.pipe.write_all(b"1\n").unwrap();
    none.reads("1\n");
    assert!(none.tail.lines().is_empty());
}

#[test]
fn draining_takes_what_is_left() {
    let mut p = proc("", 3);
    p.pipe.write_all(b"a\nb").unwrap();
    p.output.drain(&p.stream);
    assert_eq!(p.tail.lines(), ["a", "b"]);
    p.output.flush(HANG);
    p.reads("a\nb\n");
}

/// A console that does not read: the last words of a proc are in its tail all the same, and its lines stay whole.
#[test]
fn a_blocked_console_hides_nothing() {
    let mut p = proc("", 1);
    // SAFETY: no pointers.
    let size = unsafe { libc::fcntl(p.pipe.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    assert!(size >= 1 << 20);
    let line = format!("{}\n", "z".repeat(999));
    let text = format!("{}the end", line.repeat(600));
    p.pipe.write_all(text.as_bytes()).unwrap();
    p.output.drain(&p.stream);
    assert_eq!(p.tail.lines(), ["the end"]);
    p.reads(&format!("{text}\n"));
}

/// Two streams on one console: lines of the one are not broken by the other.
#[test]
fn streams_do_not_mix_within_a_line() {
    let mut p = proc("a ", 1);
    let (read, write) = sys::pipe().unwrap();
    let other = p.output.add(read, p._console_end.as_raw_fd(), "b ", Tail::new(1)).unwrap();
    let mut second = File::from(write);
    for n in 0..50 {
        write!(p.pipe, "{n:03}").unwrap();
        write!(second, "{n:03}").unwrap();
        writeln!(p.pipe, " end").unwrap();
        writeln!(second, " end").unwrap();
    }
    p.output.drain(&p.stream);
    p.output.drain(&other);
    p.output.flush(HANG);
    let mut got = vec![0; 2 * 50 * "a 000 end\n".len()];
    p.console.read_exact(&mut got).unwrap();
    let text = String::from_utf8(got).unwrap();
    for prefix in ["a ", "b "] {
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with(prefix)).map(str::to_owned).collect();
        assert_eq!(lines, (0..50).map(|n| format!("{prefix}{n:03} end")).collect::<Vec<_>>());
    }
}
