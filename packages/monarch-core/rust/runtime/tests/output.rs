//! Lines that procs print, from their pipes to the console.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use net::sys;
use runtime::agent::capture::CaptureFile;
use runtime::agent::output::{Output, Stream, Tail};
use wire::ProcUid;

mod folder;
use folder::Folder;

const HANG: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

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
    let stream = output.add(ProcUid(1), (read, end.as_raw_fd()), prefix, tail.clone(), None).unwrap();
    Proc { output, pipe: write.into(), console: console.into(), stream, tail, _console_end: end }
}

impl Proc {
    fn count(&self, window: Option<Duration>) {
        let (tx, rx) = mpsc::channel();
        self.output.aggregate(vec![self.stream.clone()], window, move || tx.send(()).unwrap());
        rx.recv_timeout(HANG).unwrap();
    }

    /// Writes the text and returns when the output thread has read it.
    fn write_and_wait(&mut self, text: &[u8]) {
        self.pipe.write_all(text).unwrap();
        let mut left: libc::c_int = 1;
        while left > 0 {
            // SAFETY: the pointer is that of an int, which the kernel writes to.
            unsafe { libc::ioctl(self.pipe.as_raw_fd(), libc::FIONREAD, &mut left) };
            std::thread::yield_now();
        }
        // The thread runs the flush only after it has handled the bytes that it has read.
        self.output.flush(HANG, false);
    }

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
fn last_line_needs_no_end() {
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
fn tail_keeps_the_last_lines() {
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
    assert_eq!(p.stream.printed(), (3, 2));
    p.output.flush(HANG, false);
    p.reads("a\nb\n");
}

/// With a console that is not read, the last line of a proc is in its tail all the same, and its lines stay whole.
#[test]
fn blocked_console_does_not_hide_output() {
    let mut p = proc("", 1);
    // SAFETY: the call has no pointers.
    let size = unsafe { libc::fcntl(p.pipe.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    assert!(size >= 1 << 20);
    let line = format!("{}\n", "z".repeat(999));
    let text = format!("{}the end", line.repeat(600));
    p.pipe.write_all(text.as_bytes()).unwrap();
    p.output.drain(&p.stream);
    assert_eq!(p.tail.lines(), ["the end"]);
    p.reads(&format!("{text}\n"));
}

/// A line of one stream is not broken by a line of another stream on the same console.
#[test]
fn streams_do_not_mix_within_a_line() {
    let mut p = proc("a ", 1);
    let (read, write) = sys::pipe().unwrap();
    let other = p.output.add(ProcUid(1), (read, p._console_end.as_raw_fd()), "b ", Tail::new(1), None).unwrap();
    let mut second = File::from(write);
    for n in 0..50 {
        write!(p.pipe, "{n:03}").unwrap();
        write!(second, "{n:03}").unwrap();
        writeln!(p.pipe, " end").unwrap();
        writeln!(second, " end").unwrap();
    }
    p.output.drain(&p.stream);
    p.output.drain(&other);
    p.output.flush(HANG, false);
    let mut got = vec![0; 2 * 50 * "a 000 end\n".len()];
    p.console.read_exact(&mut got).unwrap();
    let text = String::from_utf8(got).unwrap();
    for prefix in ["a ", "b "] {
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with(prefix)).map(str::to_owned).collect();
        assert_eq!(lines, (0..50).map(|n| format!("{prefix}{n:03} end")).collect::<Vec<_>>());
    }
}

/// Counts are written when counting ends, when the procs have ended, and at a flush of all lines; not before.
#[test]
fn counted_lines_come_out_when_counting_ends() {
    let mut p = proc("[0] ", 3);
    p.count(Some(HOUR));
    p.pipe.write_all(b"step 1\nstep 2\nother\n").unwrap();
    p.output.drain(&p.stream);
    p.reads("[2 similar log lines] [0] step 1\n[1 similar log lines] [0] other\n");
    assert_eq!(p.tail.lines(), ["step 1", "step 2", "other"]);
}

#[test]
fn lines_are_shown_again_when_counting_has_ended() {
    let mut p = proc("", 0);
    p.count(Some(HOUR));
    p.write_and_wait(b"one 1\none 2\n");
    p.count(None);
    p.reads("[2 similar log lines] one 1\n");
    p.write_and_wait(b"two 1\ntwo 2\n");
    p.reads("two 1\ntwo 2\n");
    // Another window follows at once, then a flush of all lines.
    p.count(Some(HOUR));
    p.write_and_wait(b"three 3\n");
    p.count(Some(2 * HOUR));
    p.reads("[1 similar log lines] three 3\n");
    p.write_and_wait(b"four 4\n");
    p.output.flush(HANG, false);
    p.output.flush(HANG, true);
    p.reads("[1 similar log lines] four 4\n");
}

#[test]
fn window_ends_without_a_call() {
    let mut p = proc("", 0);
    p.count(Some(Duration::from_millis(1)));
    for n in 0..3 {
        writeln!(p.pipe, "line {n}").unwrap();
        p.reads(&format!("[1 similar log lines] line {n}\n"));
    }
}

/// Windows that are full of different lines end early and often, and none of their lines is lost.
#[test]
fn many_kinds_of_lines_are_bounded_and_complete() {
    let mut p = proc("", 0);
    p.count(Some(HOUR));
    let name = |n: usize| (0..6).map(|i| char::from(b'a' + (n / 26usize.pow(i) % 26) as u8)).collect::<String>();
    let rounds = 40;
    let lines = 500;
    let mut console = p.console.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        let mut text = String::new();
        let mut buf = [0; 1 << 16];
        while seen < rounds * lines {
            let n = console.read(&mut buf).unwrap();
            assert!(n > 0);
            text.push_str(std::str::from_utf8(&buf[..n]).unwrap());
            let end = text.rfind('\n').map_or(0, |i| i + 1);
            seen += text[..end].lines().filter(|l| l.starts_with("[1 similar log lines] ")).count();
            text.drain(..end);
        }
    });
    for round in 0..rounds {
        for n in 0..lines {
            writeln!(p.pipe, "{} {}", name(round * lines + n), "x".repeat(100)).unwrap();
        }
    }
    p.output.drain(&p.stream);
    reader.join().unwrap();
}

/// Several groups are flushed from several threads at the same time, while their streams print.
#[test]
fn flushes_do_not_wait_for_each_other() {
    let (console, end) = sys::pipe().unwrap();
    let output = Arc::new(Output::new().unwrap());
    let mut pipes = Vec::new();
    let mut streams = Vec::new();
    for n in 0..4 {
        let (read, write) = sys::pipe().unwrap();
        streams.push(output.add(ProcUid(1), (read, end.as_raw_fd()), &format!("[{n}] "), Tail::new(1), None).unwrap());
        pipes.push(File::from(write));
    }
    let threads: Vec<_> = pipes
        .into_iter()
        .zip(streams.clone())
        .map(|(mut pipe, stream)| {
            let output = output.clone();
            std::thread::spawn(move || {
                for n in 0..50 {
                    let window = (n % 3 != 0).then_some(HOUR / (n + 1));
                    let (tx, rx) = mpsc::channel();
                    output.aggregate(vec![stream.clone()], window, move || tx.send(()).unwrap());
                    writeln!(pipe, "line").unwrap();
                    output.flush(HANG, n % 2 == 0);
                    rx.recv_timeout(HANG).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    streams.iter().for_each(|s| output.drain(s));
    output.flush(HANG, true);
    drop(end);
    drop(output);
    let mut file = File::from(console);
    let mut counted = 0;
    let mut text = String::new();
    let mut buf = [0; 1 << 16];
    while counted < 200 {
        let n = file.read(&mut buf).unwrap();
        assert!(n > 0, "only {counted} of 200 lines came");
        text.push_str(std::str::from_utf8(&buf[..n]).unwrap());
        let end = text.rfind('\n').map_or(0, |i| i + 1);
        for line in text[..end].lines() {
            counted += line.strip_prefix('[').and_then(|l| l.split_once(" similar")).map_or(1, |(n, _)| n.parse().unwrap());
        }
        text.drain(..end);
    }
    assert_eq!(counted, 200);
}

#[test]
fn captured_file_has_the_output_unchanged() {
    let folder = Folder::new("file");
    let output = Output::new().unwrap();
    let (read, write) = sys::pipe().unwrap();
    let (console, end) = sys::pipe().unwrap();
    let path = folder.0.join("job/mesh/0.stdout");
    let file = CaptureFile::new(path.clone());
    let stream = output.add(ProcUid(1), (read, end.as_raw_fd()), "[0] ", Tail::new(1), Some(file)).unwrap();
    let (tx, rx) = mpsc::channel();
    output.aggregate(vec![stream.clone()], Some(HOUR), move || tx.send(()).unwrap());
    rx.recv_timeout(HANG).unwrap();
    let text = format!("one 1\n{}\none 2\n\nno end", "y".repeat(9000));
    File::from(write).write_all(text.as_bytes()).unwrap();
    output.drain(&stream);
    output.flush(HANG, true);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    use std::os::unix::fs::PermissionsExt;
    let mode = |p: &std::path::Path| p.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
    let mut got = vec![0; 100];
    File::from(console).read_exact(&mut got).unwrap();
    assert!(got.starts_with(b"[2 similar log lines] [0] one 1\n"));
}
