//! Lines that procs print.
//!
//! Each proc's stdout and stderr are pipes that the agent reads. Each line is written whole, with the proc's prefix and in order, to the
//! agent's own stdout or stderr. A separate thread does this: a console that is read slowly delays only the procs that print. On request,
//! lines that are equal up to numbers are counted (`aggregation`), and the printed bytes are also written to files (`capture`). All writes
//! to a console are made by that thread, without a lock, so one flush never waits for another.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use net::lock::lock;
use net::{Poller, Source, sys};
use wire::ProcUid;

use crate::agent::aggregation::{Aggregation, Report};
use crate::agent::capture::{Capture, CaptureFile};
use crate::agent::viewer::{self, Parcel, Viewer};

/// Limit of unwritten bytes: beyond it, the thread writes to the console before it reads more from the pipe.
const BACKLOG_LIMIT: usize = 256 << 10;
/// Limit of bytes that are read from the pipe of an ended proc. It is more than a pipe can hold.
const PIPE_LIMIT: usize = 1 << 20;
/// Limit of a line; longer lines are cut.
const LINE_LIMIT: usize = 4096;
/// Mark at the end of a cut line.
const TRUNCATED: &[u8] = b"[TRUNCATED]";

/// The last lines of a proc, of both streams.
pub struct Tail {
    lines: Mutex<VecDeque<String>>,
    /// The number of lines that are kept.
    keep: usize,
}

impl Tail {
    pub fn new(keep: usize) -> Arc<Self> {
        Arc::new(Tail { lines: Mutex::default(), keep })
    }

    fn add(&self, line: &[u8]) {
        if self.keep == 0 {
            return;
        }
        let mut lines = lock(&self.lines);
        if lines.len() == self.keep {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).into_owned());
    }

    pub fn lines(&self) -> Vec<String> {
        lock(&self.lines).iter().cloned().collect()
    }
}

/// The lines of one stream that are not written yet, and their destinations.
#[derive(Default)]
struct Lines {
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    /// The line in `partial` has reached `LINE_LIMIT`: the rest of it is dropped.
    cut: bool,
    /// Whole lines with prefix that are not written to the console yet.
    pending: Vec<u8>,
    /// The group in which the lines are counted; none: the lines are shown one by one.
    group: Option<Arc<Group>>,
    /// The client on another host at which the lines are shown too.
    viewer: Option<Viewer>,
    /// Called with the first line, unless a viewer is set before.
    at_first: Option<Box<dyn FnOnce() + Send>>,
    /// The proc has ended, and all of its lines are read.
    drained: bool,
}

/// The streams of the procs of one mesh, whose lines are counted together.
struct Group {
    counted: Mutex<Counted>,
    /// The number of streams that can still bring lines.
    members: AtomicUsize,
    poller: Weak<Poller>,
    /// The client on another host at which the counts are shown too.
    viewer: Option<viewer::Send>,
    me: Weak<Group>,
}

/// The counts of a group's window.
struct Counted {
    aggregation: Aggregation,
    /// A check at the end of the window is scheduled.
    is_watched: bool,
}

impl Group {
    fn new(window: Duration, poller: &Arc<Poller>, viewer: Option<viewer::Send>) -> Arc<Self> {
        Arc::new_cyclic(|me| Group {
            counted: Mutex::new(Counted { aggregation: Aggregation::new(window), is_watched: false }),
            members: AtomicUsize::new(0),
            poller: Arc::downgrade(poller),
            viewer,
            me: me.clone(),
        })
    }

    fn add(&self, console: libc::c_int, prefix: &[u8], line: &[u8]) {
        let now = Instant::now();
        let mut c = lock(&self.counted);
        c.aggregation.add(console, prefix, line, now);
        self.watch(&mut c, now);
        if c.aggregation.is_full()
            && let Some(p) = self.poller.upgrade()
        {
            let (reports, viewer) = (c.aggregation.take(), self.viewer.clone());
            p.spawn(Box::new(move || write_reports(reports, viewer.as_ref())));
        }
    }

    fn watch(&self, c: &mut Counted, now: Instant) {
        let (false, Some(due), Some(p)) = (c.is_watched, c.aggregation.due(), self.poller.upgrade()) else { return };
        c.is_watched = true;
        let me = self.me.clone();
        let look = move || {
            if let Some(g) = me.upgrade() {
                g.look();
            }
        };
        p.later(due.saturating_duration_since(now), Box::new(look));
    }

    fn look(&self) {
        let now = Instant::now();
        let mut c = lock(&self.counted);
        c.is_watched = false;
        let reports = c.aggregation.take_due(now);
        // The window that was scheduled may have ended early; then another one runs.
        self.watch(&mut c, now);
        drop(c);
        write_reports(reports, self.viewer.as_ref());
    }

    /// Sends the counts of the window to the viewer, and returns them for the console.
    fn report_now(&self) -> Vec<Report> {
        let reports = lock(&self.counted).aggregation.take();
        if let Some(send) = &self.viewer {
            reports.iter().for_each(|(console, text)| send(if *console == 2 { 2 } else { 1 }, text.clone(), false));
        }
        reports
    }

    /// Writes the counts of the window, on the output thread.
    fn flush(&self) {
        let reports = lock(&self.counted).aggregation.take();
        write_reports(reports, self.viewer.as_ref());
    }
}

/// Writes the counts to their consoles, and sends them to the viewer.
fn write_reports(reports: Vec<Report>, viewer: Option<&viewer::Send>) {
    for (console, text) in reports {
        write_all(console, &text);
        if let Some(send) = viewer {
            send(if console == 2 { 2 } else { 1 }, text, true);
        }
    }
}

/// Writes all bytes, and waits for a slow console. If the console is closed, the bytes are dropped; the last lines are in the tail.
fn write_all(console: libc::c_int, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the pointer and the length are those of a readable slice.
        let n = unsafe { libc::write(console, rest.as_ptr().cast(), rest.len()) };
        if n >= 0 {
            rest = &rest[n as usize..];
            continue;
        }
        match std::io::Error::last_os_error().kind() {
            std::io::ErrorKind::Interrupted => {}
            std::io::ErrorKind::WouldBlock => {
                let mut p = libc::pollfd { fd: console, events: libc::POLLOUT, revents: 0 };
                // SAFETY: the pointer is that of one valid pollfd.
                unsafe { libc::poll(&mut p, 1, -1) };
            }
            _ => return,
        }
    }
}

/// One stream of one proc. The agent's table and the output thread share it.
pub struct Stream {
    proc: u64,
    pipe: OwnedFd,
    console: libc::c_int,
    prefix: Vec<u8>,
    tail: Arc<Tail>,
    file: Option<(Arc<CaptureFile>, Arc<Capture>)>,
    lines: Mutex<Lines>,
    token: u64,
    /// The number of bytes and of lines that were read so far. They are no part of `lines`, which is locked while a disk is slow.
    bytes_read: AtomicU64,
    lines_read: AtomicU64,
}

impl Stream {
    fn feed(&self, l: &mut Lines, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (body, ends) = match piece.split_last() {
                Some((b'\n', body)) => (body, true),
                _ => (piece, false),
            };
            if !l.cut {
                let room = LINE_LIMIT - l.partial.len().min(LINE_LIMIT);
                l.cut = body.len() > room;
                l.partial.extend_from_slice(&body[..body.len().min(room)]);
            }
            if ends {
                self.end_line(l);
            }
        }
    }

    fn end_line(&self, l: &mut Lines) {
        if l.cut {
            // The cut is not in the middle of a character.
            if let Err(e) = std::str::from_utf8(&l.partial)
                && e.error_len().is_none()
            {
                l.partial.truncate(e.valid_up_to());
            }
            l.partial.extend_from_slice(TRUNCATED);
        }
        self.lines_read.fetch_add(1, Ordering::Relaxed);
        self.tail.add(&l.partial);
        events::output_line(self.proc, if self.console == 2 { b"stderr" } else { b"stdout" }, &l.partial);
        l.cut = false;
        if let Some(report) = l.at_first.take() {
            report();
        }
        let Lines { partial, pending, group, viewer, .. } = l;
        if let Some(g) = group {
            g.add(self.console, &self.prefix, partial);
        } else {
            if let Some(v) = viewer {
                v.add(partial);
            }
            pending.extend_from_slice(&self.prefix);
            pending.extend_from_slice(partial);
            pending.push(b'\n');
        }
        partial.clear();
    }

    /// Reads what is in the pipe, at most `bound` bytes and one buffer more; false at the end of the stream. A caller with `may_wait` may
    /// wait for the disk.
    fn read(&self, bound: usize, may_wait: bool) -> bool {
        let mut l = lock(&self.lines);
        let mut buf = [0; 16 << 10];
        let mut taken = 0;
        loop {
            match sys::read(self.pipe.as_raw_fd(), &mut buf) {
                Ok(0) => {
                    if !l.partial.is_empty() {
                        self.end_line(&mut l);
                    }
                    return false;
                }
                Ok(n) => {
                    self.bytes_read.fetch_add(n as u64, Ordering::Relaxed);
                    if let Some((file, capture)) = &self.file {
                        capture.push(file, &buf[..n], may_wait);
                    }
                    self.feed(&mut l, &buf[..n]);
                    taken += n;
                    // The console is written before more lines are read.
                    if taken > bound {
                        return true;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }

    fn write(&self) {
        let (pending, parcel) = {
            let mut l = lock(&self.lines);
            (std::mem::take(&mut l.pending), l.viewer.as_mut().and_then(Viewer::take))
        };
        write_all(self.console, &pending);
        if let Some(p) = parcel {
            p.go(true);
        }
    }

    /// Calls `report` when the first line arrives, unless a viewer is set before. `report` must not block.
    pub fn at_first_line(&self, report: impl FnOnce() + Send + 'static) {
        lock(&self.lines).at_first = Some(Box::new(report));
    }

    /// The number of bytes and of lines that were read so far.
    pub fn printed(&self) -> (u64, u64) {
        (self.bytes_read.load(Ordering::Relaxed), self.lines_read.load(Ordering::Relaxed))
    }

    /// The path of the file with the stream's bytes; none if they are not captured.
    pub fn captured_in(&self) -> Option<&Path> {
        self.file.as_ref().map(|(file, _)| file.path())
    }

    /// Sets the group in which lines are counted, or none to show them one by one, and the viewer. Returns the group before, and lines that
    /// are still to be sent to the viewer before.
    fn regroup(&self, group: Option<Arc<Group>>, viewer: Option<Viewer>) -> (Option<Arc<Group>>, Option<Parcel>) {
        let mut l = lock(&self.lines);
        if viewer.is_some() {
            l.at_first = None;
        }
        let parcel = std::mem::replace(&mut l.viewer, viewer).and_then(|mut v| v.take());
        let before = std::mem::replace(&mut l.group, group);
        if !l.drained {
            if let Some(g) = &l.group {
                g.members.fetch_add(1, Ordering::AcqRel);
            }
            if let Some(g) = &before {
                g.members.fetch_sub(1, Ordering::AcqRel);
            }
        }
        (before, parcel)
    }
}

/// The reading end of a stream, as the poller of the output thread holds it.
struct StreamSource(Arc<Stream>, Weak<Poller>);

impl Source for StreamSource {
    fn ready(&self, _events: u32) {
        let more = self.0.read(BACKLOG_LIMIT, true);
        self.0.write();
        if !more && let Some(p) = self.1.upgrade() {
            p.remove(self.0.token, self.0.pipe.as_raw_fd());
        }
    }
}

/// The thread that writes lines to the console. The agent owns it.
pub struct Output {
    pub(crate) poller: Arc<Poller>,
    started: AtomicBool,
    groups: Arc<Mutex<Vec<Weak<Group>>>>,
    capture: Arc<Capture>,
}

impl Output {
    pub fn new() -> std::io::Result<Self> {
        let poller = Poller::new()?;
        let p = poller.clone();
        let capture = Capture::new(move |warning| p.spawn(Box::new(move || write_all(2, format!("{warning}\n").as_bytes()))));
        Ok(Output { poller, started: AtomicBool::new(false), groups: Arc::default(), capture })
    }

    fn start(&self) -> std::io::Result<()> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let poller = self.poller.clone();
        let made = crate::threads::spawn_joinable("monarch-output", move || poller.run());
        made.map(drop).inspect_err(|_| self.started.store(false, Ordering::Release))
    }

    /// Takes over the reading end of a stream. Its bytes are also written to `file`, if there is one.
    pub fn add(
        &self,
        proc: ProcUid,
        (pipe, console): (OwnedFd, libc::c_int),
        prefix: &str,
        tail: Arc<Tail>,
        file: Option<CaptureFile>,
    ) -> std::io::Result<Arc<Stream>> {
        self.start()?;
        sys::set_nonblocking(pipe.as_raw_fd())?;
        let token = self.poller.token();
        let file = file.map(|f| (Arc::new(f), self.capture.clone()));
        let (bytes_read, lines_read) = (AtomicU64::new(0), AtomicU64::new(0));
        let lines = Mutex::default();
        let prefix = prefix.into();
        let stream = Arc::new(Stream { proc: proc.0, pipe, console, prefix, tail, file, lines, token, bytes_read, lines_read });
        let source = StreamSource(stream.clone(), Arc::downgrade(&self.poller));
        self.poller.add(token, stream.pipe.as_raw_fd(), Arc::new(source))?;
        Ok(stream)
    }

    /// Handles the end of a proc: reads the rest of the pipe into its tail now, and writes it to the console soon. The counts of a group
    /// are written when the last proc of the group has ended.
    pub fn drain(&self, stream: &Arc<Stream>) {
        // The caller must not wait for a disk.
        stream.read(PIPE_LIMIT, false);
        let mut l = lock(&stream.lines);
        if !l.partial.is_empty() {
            stream.end_line(&mut l);
        }
        let gone_before = std::mem::replace(&mut l.drained, true);
        let last = l.group.clone().filter(|g| !gone_before && g.members.fetch_sub(1, Ordering::AcqRel) == 1);
        // Sent now: the report that the proc has ended takes the same route, and must arrive after its lines.
        let parcel = l.viewer.as_mut().and_then(Viewer::take);
        drop(l);
        if let Some(p) = parcel {
            p.go(false);
        }
        let reports = last.map_or(vec![], |g| g.report_now());
        let s = stream.clone();
        self.poller.spawn(Box::new(move || {
            s.write();
            write_reports(reports, None);
        }));
    }

    /// Reads the pipe and writes to the console soon, without waiting for an event of the poller.
    pub fn read_soon(&self, stream: &Arc<Stream>) {
        let s = stream.clone();
        self.poller.spawn(Box::new(move || {
            s.read(BACKLOG_LIMIT, false);
            s.write();
        }));
    }

    /// Counts the lines of these streams together in windows from now on, or shows them one by one again. The lines counted until now are
    /// on the console when `done` is called.
    pub fn aggregate(&self, streams: Vec<Arc<Stream>>, window: Option<Duration>, done: impl FnOnce() + Send + 'static) {
        self.regroup_streams(streams.into_iter().map(|s| (s, None)).collect(), window, None, done);
    }

    /// As `aggregate`, with a viewer for the lines of each stream, and one for the counts.
    pub fn regroup_streams(
        &self,
        streams: Vec<(Arc<Stream>, Option<Viewer>)>,
        window: Option<Duration>,
        reports: Option<viewer::Send>,
        done: impl FnOnce() + Send + 'static,
    ) {
        if self.start().is_err() {
            // Without the thread, no stream was added, so no line is counted.
            return done();
        }
        let groups = self.groups.clone();
        let poller = self.poller.clone();
        self.poller.spawn(Box::new(move || {
            let group = window.map(|w| Group::new(w, &poller, reports));
            let mut before: Vec<Arc<Group>> = Vec::new();
            for (s, viewer) in streams {
                // Lines printed before the change are handled in the way set then.
                s.read(PIPE_LIMIT, true);
                let (old, parcel) = s.regroup(group.clone(), viewer);
                // The lines that were read before the change.
                s.write();
                if let Some(p) = parcel {
                    p.go(true);
                }
                before.extend(old.filter(|old| !before.iter().any(|g| Arc::ptr_eq(g, old))));
            }
            before.iter().for_each(|g| g.flush());
            let mut all = lock(&groups);
            all.retain(|g| g.strong_count() > 0);
            all.extend(group.as_ref().map(Arc::downgrade));
            drop(all);
            done();
        }));
    }

    /// Writes lines of another host's procs.
    pub fn show(&self, console: libc::c_int, lines: Vec<u8>) {
        match self.start() {
            Ok(()) => self.poller.spawn(Box::new(move || write_all(console, &lines))),
            Err(_) => write_all(console, &lines),
        }
    }

    /// Waits until all lines that were read are on the console and in the files, at most for `bound`. With `counted`, windows that have not
    /// ended are ended and written too.
    pub fn flush(&self, bound: Duration, counted: bool) {
        if !self.started.load(Ordering::Acquire) {
            return;
        }
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = gate.clone();
        let groups = self.groups.clone();
        self.poller.spawn(Box::new(move || {
            if counted {
                let all: Vec<_> = lock(&groups).iter().filter_map(Weak::upgrade).collect();
                all.iter().for_each(|g| g.flush());
            }
            *lock(&theirs.0) = true;
            theirs.1.notify_all();
        }));
        let deadline = Instant::now() + bound;
        let mut open = lock(&gate.0);
        while !*open {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            open = gate.1.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(open);
        self.capture.flush(deadline);
    }
}
