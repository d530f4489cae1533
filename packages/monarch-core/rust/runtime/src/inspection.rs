//! Inspection: the report of a process about itself for `monarch ps` and `monarch stack`: its state, and the stacks of its threads.
//!
//! The thread that reads the sockets answers requests for the state, without Python: a process that holds the GIL, or whose actor never
//! returns, answers at once. The housekeeping thread takes the stacks with the GIL, at one consistent moment. If it does not get the GIL
//! within `STACKS_TIMEOUT`, a handler of Python's `faulthandler` writes the stacks: it walks the frames without the GIL. A thread that runs
//! Python code changes its frames meanwhile, and the walk may crash. So the handler runs in a forked child, which has a copy of the frames
//! at one moment and ends in place of this process.
//!
//! It reads the other components, and changes none. Each request gets one answer.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use net::Arena;
use net::lock::lock;
use serde::Serialize;
use wire::{Control, ProcUid};

use crate::calls::Calls;
use crate::caster::Caster;
use crate::mailboxes::Mailboxes;
use crate::mailboxes::mailbox::ActorState;
use crate::messages::Messages;
use crate::peers::Peers;
use crate::peers::peer::Peer;
use crate::roles::CastState;
use crate::system::{SystemEvent, SystemQueue};

/// The requests, with the numbers of `Control::Inspect`.
pub const INSPECT_STATE: u8 = 0;
pub const INSPECT_STACKS: u8 = 1;

/// The time that the housekeeping thread has for the stacks; after that `faulthandler` writes them.
const STACKS_TIMEOUT: Duration = Duration::from_millis(700);
/// The largest text of `faulthandler` that is read: that of 100 threads with 100 frames each.
const MAX_DUMP: usize = 4 << 20;

/// The attempts to walk the frames: each has a copy of another moment.
const DUMP_ATTEMPTS: usize = 3;

/// Runs the handler of a signal in a forked child; false if the child has crashed, or could not be forked.
fn handle_in_child(signal: i32) -> bool {
    // SAFETY: the sets are initialised before use. All signals are blocked at the fork, so the child begins no handler of this process.
    // The child makes system calls and runs one handler that is safe at any point of a program; it takes no lock, and ends by `_exit`.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        // The C library's `fork` would run the fork handlers of Python and of other libraries. Without a signal at its end, the child is
        // not found by `wait` of this program.
        let pid = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
        if pid == 0 {
            handle_and_exit(signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        let mut status = 0;
        while pid > 0 && libc::waitpid(pid as libc::pid_t, &mut status, libc::__WALL) < 0 {
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return false;
            }
        }
        pid > 0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// The child of `handle_in_child`.
///
/// # Safety
/// This process is such a child.
unsafe fn handle_and_exit(signal: i32) -> ! {
    extern "C" fn crashed(_: libc::c_int) {
        // SAFETY: the call ends this process, and may be made in any handler.
        unsafe { libc::_exit(1) }
    }
    // SAFETY: as in `handle_in_child`. The thread's number in the memory of the C library is that of the parent's thread.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = crashed as extern "C" fn(libc::c_int) as usize;
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        for number in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
            libc::sigaction(number, &action, std::ptr::null_mut());
            libc::sigaddset(&mut only, number);
        }
        libc::sigaddset(&mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
        libc::syscall(libc::SYS_tgkill, libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid), signal);
        libc::_exit(0)
    }
}

/// The state of a link in an inspection.
#[derive(Serialize)]
pub struct LinkState {
    pub peer: String,
    /// The number of bytes that the socket has not accepted yet.
    pub queued: usize,
    pub down: bool,
}

/// The state of a process in an inspection.
#[derive(Serialize)]
pub struct ProcState {
    pub uid: String,
    pub pid: u32,
    pub name: String,
    pub actors: Vec<ActorState>,
    pub calls_in_flight: usize,
    pub dropped_replies: u64,
    /// The number of messages to ports whose receiver was dropped.
    pub dropped_items: u64,
    /// The number of messages whose deadline had passed before they began.
    pub expired_messages: u64,
    /// The bytes of shared memory reserved for large parts.
    pub arena: u64,
    pub links: Vec<LinkState>,
    pub casts: CastState,
}

/// An id in the notation of inspections.
pub fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// The inspections of one process: requests for stacks that wait for the housekeeping thread, and what the answers need.
pub struct Inspections {
    pub(crate) peers: Arc<Peers>,
    pub(crate) mailboxes: Arc<Mailboxes>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) messages: Arc<Messages>,
    pub(crate) caster: Arc<Caster>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) system: Arc<SystemQueue>,
    pub(crate) me: Weak<Inspections>,
    pub(crate) requests: StackRequests,
}

/// The requests for stacks by ticket, and the means to take stacks.
#[derive(Default)]
pub(crate) struct StackRequests {
    waiting: Mutex<HashMap<u64, (ProcUid, u64)>>,
    next: AtomicU64,
    /// The file that the handler writes to, and the signal that runs the handler.
    dump: Mutex<Option<(RawFd, i32)>>,
    /// The name of this process in inspections.
    name: Mutex<String>,
}

impl Inspections {
    pub fn set_name(&self, name: String) {
        *lock(&self.requests.name) = name;
    }

    /// Sets the means to take stacks without the GIL; `None` before the interpreter removes the handler.
    pub fn set_stack_handler(&self, how: Option<(RawFd, i32)>) {
        *lock(&self.requests.dump) = how;
    }

    /// The stacks of all threads as the text of `faulthandler`. After a crash in each attempt it is the text until the last crash.
    fn dump(&self) -> Option<String> {
        let held = lock(&self.requests.dump);
        let (fd, signal) = (*held)?;
        for _ in 0..DUMP_ATTEMPTS {
            // SAFETY: these system calls use a descriptor of this process.
            if unsafe { libc::ftruncate(fd, 0) != 0 || libc::lseek(fd, 0, libc::SEEK_SET) != 0 } {
                return None;
            }
            if handle_in_child(signal) {
                break;
            }
        }
        let mut text = vec![0_u8; MAX_DUMP];
        // SAFETY: the buffer has this length.
        let n = unsafe { libc::pread(fd, text.as_mut_ptr().cast(), MAX_DUMP, 0) };
        text.truncate(usize::try_from(n).ok()?);
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Handles a request to inspect this process. The answer is `Control::Inspected` with the same number.
    pub fn inspect(&self, from: ProcUid, id: u64, what: u8) {
        if what == INSPECT_STACKS { self.inspect_stacks(from, id) } else { self.inspected(from, id, self.state_json()) }
    }

    /// The state of this process as JSON.
    pub fn state_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.state()).unwrap_or_default()
    }

    pub fn state(&self) -> ProcState {
        let now = self.peers.poller.now();
        let mut actors: Vec<ActorState> = self.mailboxes.of_actors().iter().filter_map(|m| m.describe(now)).collect();
        actors.sort_by(|a, b| a.display.cmp(&b.display));
        let link = |p: Arc<Peer>| LinkState { peer: hex(p.uid.0), queued: p.link.queued(), down: p.link.is_down() };
        ProcState {
            uid: hex(self.peers.uid.0),
            pid: std::process::id(),
            name: lock(&self.requests.name).clone(),
            actors,
            calls_in_flight: self.calls.in_flight(),
            dropped_replies: self.calls.dropped_replies(),
            dropped_items: self.messages.dropped_items.load(Ordering::Relaxed),
            expired_messages: self.messages.expired(),
            arena: self.arena.reserved(),
            links: self.peers.all().into_iter().filter(|p| p.ended().is_none() && p.link.is_attached()).map(link).collect(),
            casts: self.cast_state(),
        }
    }

    pub fn cast_state(&self) -> CastState {
        CastState { calls: self.caster.waiting(), ..self.peers.roles.gateway().map_or_else(CastState::default, |g| g.cast_state()) }
    }

    /// Sends the answer to an inspection.
    fn inspected(&self, to: ProcUid, id: u64, body: Vec<u8>) {
        if to == self.peers.uid {
            self.on_inspected(to, id, body);
        } else {
            self.peers.peer_unlinked(to).0.send_control(Control::Inspected { id, body });
        }
    }

    /// Takes the answer of a process that this agent has inspected.
    pub fn on_inspected(&self, from: ProcUid, id: u64, body: Vec<u8>) {
        if let Some(agent) = self.peers.roles.agent() {
            agent.inspected(from, id, body);
        }
    }

    /// Requests the stacks from the housekeeping thread; after `STACKS_TIMEOUT` the handler writes them.
    fn inspect_stacks(&self, from: ProcUid, id: u64) {
        let ticket = self.requests.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.requests.waiting).insert(ticket, (from, id));
        let me = self.me.clone();
        let by_handler = Box::new(move || drop(me.upgrade().inspect(|me| me.stacks_by_handler(ticket))));
        if self.system.is_served() {
            self.system.push(SystemEvent::Stacks { ticket });
            self.peers.poller.later(STACKS_TIMEOUT, by_handler);
        } else {
            self.peers.poller.spawn(by_handler);
        }
    }

    /// Answers a request for stacks by the handler, unless the housekeeping thread has answered it.
    fn stacks_by_handler(&self, ticket: u64) {
        if !lock(&self.requests.waiting).contains_key(&ticket) {
            return;
        }
        let text = self.dump();
        let why = if self.system.is_served() { "the GIL is held" } else { "starting" };
        let body = serde_json::json!({"uid": hex(self.peers.uid.0), "pid": std::process::id(), "without_gil": why, "text": text});
        self.stacks_taken(ticket, body.to_string().into_bytes());
    }

    /// Takes the stacks from the housekeeping thread, or from the handler in its place.
    pub fn stacks_taken(&self, ticket: u64, body: Vec<u8>) {
        if let Some((from, id)) = lock(&self.requests.waiting).remove(&ticket) {
            self.inspected(from, id, body);
        }
    }

    /// Wakes the threads of actors that sleep although they have work (`Mailbox::check_wakeup`).
    pub fn check_for_lost_wakeups(&self) {
        let now = self.peers.poller.now();
        for mailbox in self.mailboxes.of_actors() {
            mailbox.check_wakeup(now);
        }
    }

    /// Handles the agent's check whether Python runs in this process. An idle process answers without waking a thread.
    pub fn pinged(&self, from: ProcUid, seq: u64) {
        if from != self.peers.uid {
            self.check_for_lost_wakeups();
        }
        // In the client, Python itself always answers: its main thread may run code that no mailbox shows.
        let idle = from != self.peers.uid && self.system.is_empty() && self.mailboxes.of_actors().iter().all(|m| m.is_resting());
        if idle || !self.system.is_served() {
            self.pong(from, seq);
        } else {
            self.system.push(SystemEvent::Ping { from, seq });
        }
    }

    /// Answers a check. The caller holds the GIL, or this process is idle.
    pub fn pong(&self, to: ProcUid, seq: u64) {
        if to != self.peers.uid {
            self.peers.peer_unlinked(to).0.send_control(Control::Pong { seq });
        } else if let Some(agent) = self.peers.roles.agent() {
            agent.ponged(to);
        }
    }
}
