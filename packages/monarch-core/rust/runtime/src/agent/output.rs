//! Lines that procs print.
//!
//! Each proc's stdout and stderr are pipes that the agent reads. Lines come out whole, with the proc's prefix, in
//! order, on the agent's own stdout and stderr. A thread of its own does it: a console that does not read slows
//! down those who print, and nobody else. On request lines that are alike are counted (`aggregation`) on their way, and
//! what was printed is also kept in files (`capture`). Everything that is written to a console is written by that thread
//! and without a lock, so one flush never waits for another.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use net::lock::lock;
use net::{Poller, Source, sys};
use wire::ProcUid;

use crate::agent::aggregation::{Aggregation, Report};
use crate::agent::capture::{Capture, CaptureFile};
use crate::agent::viewer::{self, Parcel, Viewer};

/// Lines that may wait for the console before a pipe is left unread.
const BACKLOG: usize = 256 << 10;
/// More than a pipe holds: what a proc that is gone can have left in it.
const PIPE: usize = 1 << 20;
/// Longer lines are cut (contract 13.1).
const LINE: usize = 4096;
const TRUNCATED: &[u8] = b"[TRUNCATED]";

/// The last lines of a proc, both streams.
pub struct Tail {
    lines: Mutex<VecDeque<String>>,
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

#[derive(Default)]
struct Lines {
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    cut: bool,
    /// Whole lines with prefix, not yet on the console.
    pending: Vec<u8>,
    /// Where lines are counted instead.
    group: Option<Arc<Group>>,
    /// Where they are shown too.
    viewer: Option<Viewer>,
    /// Called with the first line, unless there is a viewer before it.
    at_first: Option<Box<dyn FnOnce() + Send>>,
    /// The proc is gone.
    drained: bool,
}

/// Streams whose lines are counted together: of the procs of one mesh.
struct Group {
    counted: Mutex<Counted>,
    /// Streams that can still bring lines.
    members: AtomicUsize,
    poller: Weak<Poller>,
    /// Where reports are shown too.
    viewer: Option<viewer::Send>,
    me: Weak<Group>,
}

struct Counted {
    aggregation: Aggregation,
    /// Somebody is going to look when the window is over.
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
        // A window that was taken early was followed by another one.
        self.watch(&mut c, now);
        drop(c);
        write_reports(reports, self.viewer.as_ref());
    }

    /// Reports to the viewer what was counted; that is still to be written here.
    fn report_now(&self) -> Vec<Report> {
        let reports = lock(&self.counted).aggregation.take();
        if let Some(send) = &self.viewer {
            reports.iter().for_each(|(console, text)| send(if *console == 2 { 2 } else { 1 }, text.clone(), false));
        }
        reports
    }

    /// On the output thread.
    fn flush(&self) {
        let reports = lock(&self.counted).aggregation.take();
        write_reports(reports, self.viewer.as_ref());
    }
}

fn write_reports(reports: Vec<Report>, viewer: Option<&viewer::Send>) {
    for (console, text) in reports {
        write_all(console, &text);
        if let Some(send) = viewer {
            send(if console == 2 { 2 } else { 1 }, text, true);
        }
    }
}

/// Waits for a console that is slow; one that is closed takes nothing, and the lines are in the tail.
fn write_all(console: libc::c_int, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: a readable slice.
        let n = unsafe { libc::write(console, rest.as_ptr().cast(), rest.len()) };
        if n >= 0 {
            rest = &rest[n as usize..];
            continue;
        }
        match std::io::Error::last_os_error().kind() {
            std::io::ErrorKind::Interrupted => {}
            std::io::ErrorKind::WouldBlock => {
                let mut p = libc::pollfd { fd: console, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one valid pollfd.
                unsafe { libc::poll(&mut p, 1, -1) };
            }
            _ => return,
        }
    }
}

/// One stream of one proc.
pub struct Stream {
    proc: u64,
    pipe: OwnedFd,
    console: libc::c_int,
    prefix: Vec<u8>,
    tail: Arc<Tail>,
    file: Option<(Arc<CaptureFile>, Arc<Capture>)>,
    lines: Mutex<Lines>,
    token: u64,
}

impl Stream {
    fn feed(&self, l: &mut Lines, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (body, ends) = match piece.split_last() {
                Some((b'\n', body)) => (body, true),
                _ => (piece, false),
            };
            if !l.cut {
                let room = LINE - l.partial.len().min(LINE);
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
            // Not in the middle of a character.
            if let Err(e) = std::str::from_utf8(&l.partial)
                && e.error_len().is_none()
            {
                l.partial.truncate(e.valid_up_to());
            }
            l.partial.extend_from_slice(TRUNCATED);
        }
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

    /// Reads what is there, so many bytes at most; false at the end of the stream. `patient` callers may wait for the disk.
    fn read(&self, bound: usize, patient: bool) -> bool {
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
                    if let Some((file, capture)) = &self.file {
                        capture.push(file, &buf[..n], patient);
                    }
                    self.feed(&mut l, &buf[..n]);
                    taken += n;
                    // Give the console its turn before the backlog grows.
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

    /// `report` is called when the first line comes, unless a viewer is there before; it must not wait.
    pub fn at_first_line(&self, report: impl FnOnce() + Send + 'static) {
        lock(&self.lines).at_first = Some(Box::new(report));
    }

    /// The file with its bytes, if they are kept.
    pub fn captured_in(&self) -> Option<&Path> {
        self.file.as_ref().map(|(file, _)| file.path())
    }

    /// From now on its lines are counted there, or shown, and shown to the viewer too; gives where they were counted before.
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

struct StreamSource(Arc<Stream>, Weak<Poller>);

impl Source for StreamSource {
    fn ready(&self, _events: u32) {
        let more = self.0.read(BACKLOG, true);
        self.0.write();
        if !more && let Some(p) = self.1.upgrade() {
            p.remove(self.0.token, self.0.pipe.as_raw_fd());
        }
    }
}

/// The thread that carries lines to the console.
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
        let made = crate::node::spawn_joinable("monarch-output", move || poller.run());
        made.map(drop).inspect_err(|_| self.started.store(false, Ordering::Release))
    }

    /// Takes over the reading end of a stream; what comes out of it also goes to `file`.
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
        let stream = Arc::new(Stream { proc: proc.0, pipe, console, prefix: prefix.into(), tail, file, lines: Mutex::default(), token });
        let source = StreamSource(stream.clone(), Arc::downgrade(&self.poller));
        self.poller.add(token, stream.pipe.as_raw_fd(), Arc::new(source))?;
        Ok(stream)
    }

    /// The proc is gone: takes what it left in the pipe into its tail now, and to the console soon. What was counted of a
    /// group goes there with its last proc.
    pub fn drain(&self, stream: &Arc<Stream>) {
        // Who calls must not wait for a disk.
        stream.read(PIPE, false);
        let mut l = lock(&stream.lines);
        if !l.partial.is_empty() {
            stream.end_line(&mut l);
        }
        let gone_before = std::mem::replace(&mut l.drained, true);
        let last = l.group.clone().filter(|g| !gone_before && g.members.fetch_sub(1, Ordering::AcqRel) == 1);
        // Now: the word that the proc has ended goes the same way.
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

    /// Takes what is in the pipe to the console soon, ahead of the kernel's word that there is something.
    pub fn carry(&self, stream: &Arc<Stream>) {
        let s = stream.clone();
        self.poller.spawn(Box::new(move || {
            s.read(BACKLOG, false);
            s.write();
        }));
    }

    /// Counts the lines of these streams together in windows from now on, or shows them one by one again. What has been
    /// counted of them so far is on the console when `done` is called.
    pub fn aggregate(&self, streams: Vec<Arc<Stream>>, window: Option<Duration>, done: impl FnOnce() + Send + 'static) {
        self.arrange(streams.into_iter().map(|s| (s, None)).collect(), window, None, done);
    }

    /// The same, with viewers of their lines, and one of the reports of what was counted.
    pub fn arrange(
        &self,
        streams: Vec<(Arc<Stream>, Option<Viewer>)>,
        window: Option<Duration>,
        reports: Option<viewer::Send>,
        done: impl FnOnce() + Send + 'static,
    ) {
        if self.start().is_err() {
            // Without a thread there is no line to count.
            return done();
        }
        let groups = self.groups.clone();
        let poller = self.poller.clone();
        self.poller.spawn(Box::new(move || {
            let group = window.map(|w| Group::new(w, &poller, reports));
            let mut before: Vec<Arc<Group>> = Vec::new();
            for (s, viewer) in streams {
                // What was printed before is shown as it was to be then.
                s.read(PIPE, true);
                let (old, parcel) = s.regroup(group.clone(), viewer);
                // Those that were read before the change.
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

    /// Lines of another host.
    pub fn show(&self, console: libc::c_int, lines: Vec<u8>) {
        match self.start() {
            Ok(()) => self.poller.spawn(Box::new(move || write_all(console, &lines))),
            Err(_) => write_all(console, &lines),
        }
    }

    /// Waits until all that was handed over is on the console and in the files, at most so long; `counted`: also what a
    /// window has counted that is not over.
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
