//! A caller, the loop of an actor, the I/O thread and a connection that is closed, under random schedules. A lost wake-up shows as a
//! deadlock.
//!
//! The mailbox is the real one. `Poller::wait`, `Waiter::notify`, `LoopSleep::sleep` and `SharedSelector.select` are copied line by line.
//! The kernel is a model of the functions that they use: an epoll set whose member reports once when it is armed, a set around it, and
//! descriptors whose numbers are used again.
//!
//! cargo test -p monarch-runtime --features shuttle --test sleeping_loop
#![cfg(feature = "shuttle")]

use net::RecvPart;
use runtime::mailboxes::mailbox::{Consumer, Delivery};
use runtime::{Incoming, Mailbox};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;
use wire::{CallId, MailboxId, ProcUid};

const IDLE: u32 = 0;
const NOTIFIED: u32 = 1;
const SLEEPING: u32 = 2;
const LEADING: u32 = 3;

const DIAL: u64 = 1;
const LOOP: u64 = 2;

/// The state of the kernel. The loop and the connection that is closed may have the same descriptor number.
#[derive(Default)]
struct State {
    kick: bool,
    /// The mailbox's descriptor in the loop's set is readable.
    mail: bool,
    /// The loop's set is in the poller's set, and reports there once.
    entered: bool,
    armed: bool,
    /// The poller's set reports to the I/O thread once.
    outer_armed: bool,
    stopped: bool,
    /// The token with which the number was registered last.
    owner: u64,
}

impl State {
    fn loop_reports(&self) -> bool {
        self.entered && self.armed && self.mail
    }

    fn inner_reports(&self) -> bool {
        self.kick || self.loop_reports()
    }
}

struct Waiter {
    state: AtomicU32,
    /// The futex of the waiter.
    woken: (Mutex<bool>, Condvar),
}

impl Waiter {
    fn new() -> Self {
        Waiter { state: AtomicU32::new(IDLE), woken: (Mutex::new(false), Condvar::new()) }
    }
}

#[derive(PartialEq)]
enum Mode {
    Armed,
    Reading,
    Led,
}

struct World {
    kernel: Arc<(Mutex<State>, Condvar)>,
    mode: Mutex<Mode>,
    mailbox: Arc<Mailbox>,
    caller: Waiter,
    of_loop: Waiter,
    loop_ready: AtomicBool,
    answers: AtomicU32,
    /// The poller checks to which token a number belongs.
    knows_owners: bool,
}

impl World {
    fn new(knows_owners: bool) -> Arc<Self> {
        Arc::new(World {
            kernel: Arc::new((Mutex::new(State { outer_armed: true, ..State::default() }), Condvar::new())),
            mode: Mutex::new(Mode::Armed),
            mailbox: Mailbox::new(MailboxId(1)),
            caller: Waiter::new(),
            of_loop: Waiter::new(),
            loop_ready: AtomicBool::new(false),
            answers: AtomicU32::new(0),
            knows_owners,
        })
    }

    fn kernel(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.kernel.0.lock().unwrap());
        self.kernel.1.notify_all();
    }

    // ---- waiter.rs

    fn notify(&self, waiter: &Waiter, led_by_this: bool) -> bool {
        match waiter.state.swap(NOTIFIED, Ordering::AcqRel) {
            SLEEPING => {
                *waiter.woken.0.lock().unwrap() = true;
                waiter.woken.1.notify_one();
                true
            }
            LEADING if !led_by_this => {
                self.kernel(|k| k.kick = true);
                false
            }
            _ => false,
        }
    }

    // ---- poller.rs

    /// Handles the events of the set. Returns true if another thread was woken.
    fn read(&self, wait: bool, led: Option<&Waiter>) -> bool {
        let reported = {
            let mut k = self.kernel.0.lock().unwrap();
            while wait && !k.inner_reports() {
                k = self.kernel.1.wait(k).unwrap();
            }
            let reported = k.loop_reports();
            if reported {
                k.armed = false;
            }
            // The kick is consumed by the thread that handles it, and by no other thread.
            k.kick = false;
            reported
        };
        if !reported {
            return false;
        }
        self.loop_ready.store(true, Ordering::Release);
        self.notify(&self.of_loop, led.is_some_and(|w| std::ptr::eq(w, &self.of_loop)))
    }

    fn rearm(&self) {
        let mut mode = self.mode.lock().unwrap();
        *mode = Mode::Armed;
        self.kernel(|k| k.outer_armed = true);
    }

    fn take_lead(&self) -> bool {
        let mut mode = self.mode.lock().unwrap();
        if *mode != Mode::Armed {
            return false;
        }
        *mode = Mode::Led;
        self.kernel(|k| k.outer_armed = false);
        true
    }

    fn wait(&self, waiter: &Waiter, ready: impl Fn() -> bool) {
        let mut may_lead = true;
        loop {
            waiter.state.swap(IDLE, Ordering::AcqRel);
            if ready() {
                return;
            }
            if may_lead && self.take_lead() {
                if waiter.state.compare_exchange(IDLE, LEADING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    loop {
                        let woke_another = self.read(true, Some(waiter));
                        if waiter.state.load(Ordering::Acquire) == NOTIFIED {
                            break;
                        }
                        if woke_another {
                            may_lead = false;
                            break;
                        }
                    }
                }
                self.rearm();
            } else if waiter.state.compare_exchange(IDLE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                let mut woken = waiter.woken.0.lock().unwrap();
                while !*woken && waiter.state.load(Ordering::Acquire) == SLEEPING {
                    woken = waiter.woken.1.wait(woken).unwrap();
                }
                *woken = false;
            }
        }
    }

    fn io_thread(&self) {
        loop {
            {
                let mut k = self.kernel.0.lock().unwrap();
                while !k.stopped && !(k.outer_armed && k.inner_reports()) {
                    k = self.kernel.1.wait(k).unwrap();
                }
                if k.stopped {
                    return;
                }
                k.outer_armed = false;
            }
            {
                let mut mode = self.mode.lock().unwrap();
                if *mode != Mode::Armed {
                    continue;
                }
                *mode = Mode::Reading;
            }
            self.read(false, None);
            self.rearm();
        }
    }

    fn enter(&self, token: u64) {
        self.kernel(|k| (k.owner, k.entered) = (token, true));
    }

    /// Removes the number from the set. It may belong to another token by now.
    fn remove(&self, token: u64) {
        self.kernel(|k| {
            if !self.knows_owners || k.owner == token {
                k.entered = false;
            }
        });
    }

    // ---- the loop of the actor

    fn loop_thread(&self, messages: u32) {
        self.enter(LOOP);
        let kernel = self.kernel.clone();
        let wake = move || {
            kernel.0.lock().unwrap().mail = true;
            kernel.1.notify_all();
        };
        self.mailbox.set_consumer(Consumer::Model(Box::new(wake)));
        let mut handled = 0;
        while handled < messages {
            // `LoopSleep::sleep`
            self.loop_ready.store(false, Ordering::Release);
            self.kernel(|k| k.armed = true);
            self.wait(&self.of_loop, || self.loop_ready.load(Ordering::Acquire));
            // `select(0)`, and `_wake`
            let mut rung = false;
            self.kernel(|k| rung = std::mem::take(&mut k.mail));
            if !rung {
                continue;
            }
            while let Some(Delivery::Message(_)) = self.mailbox.pop() {
                handled += 1;
                // `PendingCall::complete`
                self.answers.fetch_add(1, Ordering::AcqRel);
                self.notify(&self.caller, false);
            }
        }
    }
}

fn message() -> Incoming {
    Incoming {
        from: ProcUid(1),
        dest: MailboxId(1),
        sender: MailboxId(2),
        call_id: CallId(0),
        rank: 0,
        flags: 0,
        trace: None,
        due: None,
        method: Box::default(),
        extent: Box::default(),
        parts: vec![RecvPart::Inline { data: Vec::new().into(), readonly: true }],
    }
}

/// Makes calls one after another, while a connection is closed whose number the loop has got.
fn calls(knows_owners: bool, gives_up: bool) {
    const CALLS: u32 = 2;
    let world = World::new(knows_owners);
    let start = |body: fn(&World)| {
        let world = world.clone();
        thread::spawn(move || body(&world))
    };
    let mut threads = vec![start(|w| w.loop_thread(CALLS))];
    let io = start(World::io_thread);
    if gives_up {
        threads.push(start(|w| w.remove(DIAL)));
    }
    for n in 1..=CALLS {
        assert!(world.mailbox.push(message()).is_ok());
        world.wait(&world.caller, || world.answers.load(Ordering::Acquire) >= n);
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    world.kernel(|k| k.stopped = true);
    io.join().unwrap();
}

/// Runs as many schedules as fit in a second or two: half of them random, half with a few well-placed preemptions.
fn explore(schedules: usize, f: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(f.clone(), schedules / 2);
    shuttle::check_pct(f, schedules / 2, 3);
}

#[test]
fn every_call_is_answered() {
    explore(20_000, || calls(true, false));
}

#[test]
fn abandoned_connection_does_not_affect_the_next_owner() {
    explore(20_000, || calls(true, true));
}

/// The connection's descriptor is closed, the loop gets its number and enters the set, and then the number is removed from the set.
#[test]
#[should_panic(expected = "deadlock")]
fn removal_by_number_alone_loses_a_wakeup() {
    explore(20_000, || calls(false, true));
}
