//! Leader and followers: every waiting thread is woken.

mod running;
mod side;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use net::timers::Timers;
use net::{Poller, Source, WaitEnd, Waiter, sys};
use running::Running;
use side::HANG;

fn wait(running: &Running, w: &Waiter, ready: impl FnMut() -> bool) -> WaitEnd {
    running.0.wait(w, Some(Instant::now() + HANG), ready)
}

/// Counts its events, and notifies its waiter.
struct Bell {
    event: OwnedFd,
    rung: AtomicU64,
    waiter: Arc<Waiter>,
}

impl Source for Bell {
    fn ready(&self, _events: u32) {
        sys::eventfd_drain(self.event.as_raw_fd());
        self.rung.fetch_add(1, Ordering::Relaxed);
        self.waiter.notify();
    }
}

fn bell(poller: &Poller) -> Arc<Bell> {
    let bell = Arc::new(Bell { event: sys::eventfd().unwrap(), rung: AtomicU64::new(0), waiter: poller.waiter() });
    poller.add(poller.token(), bell.event.as_raw_fd(), bell.clone()).unwrap();
    bell
}

/// Many waiters, each with its own bell. Each ring is sent only after the ring before it has arrived.
#[test]
fn no_wake_up_is_lost() {
    const WAITERS: usize = 6;
    const ROUNDS: u64 = 400;
    let running = Arc::new(Running::new());
    let start = Arc::new(Barrier::new(2 * WAITERS));
    let mut threads = Vec::new();
    for i in 0..WAITERS {
        let bell = bell(&running.0);
        let (ran, next) = channel();
        let (r, b, s) = (running.clone(), bell.clone(), start.clone());
        threads.push(std::thread::spawn(move || {
            s.wait();
            for n in 1..=ROUNDS {
                // Some waiters never lead.
                let deadline = Some(Instant::now() + HANG);
                let ready = || b.rung.load(Ordering::Relaxed) >= n;
                let end = if i % 3 == 2 { r.0.follow(&b.waiter, deadline, ready) } else { r.0.wait(&b.waiter, deadline, ready) };
                assert_eq!(end, WaitEnd::Ready, "waiter {i} missed ring {n}");
                ran.send(()).unwrap();
            }
        }));
        let s = start.clone();
        threads.push(std::thread::spawn(move || {
            s.wait();
            for n in 1..=ROUNDS {
                // Through a descriptor, or directly from this thread.
                if n % 2 == 0 {
                    sys::eventfd_signal(bell.event.as_raw_fd());
                } else {
                    bell.rung.fetch_add(1, Ordering::Relaxed);
                    bell.waiter.notify();
                }
                next.recv_timeout(HANG).unwrap();
            }
        }));
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// The leader wakes others and stops leading; another thread reads the later events.
#[test]
fn waiting_thread_takes_over_polling() {
    let running = Arc::new(Running::new());
    let bells: Vec<_> = (0..4).map(|_| bell(&running.0)).collect();
    let threads: Vec<_> = bells
        .iter()
        .cloned()
        .map(|b| {
            let r = running.clone();
            std::thread::spawn(move || {
                (1..=100).for_each(|n| assert_eq!(wait(&r, &b.waiter, || b.rung.load(Ordering::Relaxed) >= n), WaitEnd::Ready))
            })
        })
        .collect();
    let ringer = std::thread::spawn(move || {
        while bells.iter().any(|b| b.rung.load(Ordering::Relaxed) < 100) {
            bells.iter().for_each(|b| sys::eventfd_signal(b.event.as_raw_fd()));
            std::thread::yield_now();
        }
    });
    threads.into_iter().for_each(|t| t.join().unwrap());
    ringer.join().unwrap();
}

#[test]
fn notification_before_the_wait_counts() {
    let running = Running::new();
    let w = running.0.waiter();
    let flag = AtomicBool::new(true);
    w.notify();
    assert_eq!(wait(&running, &w, || flag.load(Ordering::Relaxed)), WaitEnd::Ready);
}

/// The notification comes between the check of the condition and the sleep.
#[test]
fn notification_between_check_and_sleep_counts() {
    let running = Running::new();
    let w = running.0.waiter();
    for follow in [false, true] {
        let mut looks = 0;
        let ready = || {
            looks += 1;
            if looks == 1 {
                w.notify();
            }
            looks > 1
        };
        let deadline = Some(Instant::now() + HANG);
        let end = if follow { running.0.follow(&w, deadline, ready) } else { running.0.wait(&w, deadline, ready) };
        assert_eq!(end, WaitEnd::Ready);
        assert_eq!(looks, 2);
    }
}

#[test]
fn wait_ends_at_its_deadline() {
    let running = Running::new();
    let w = running.0.waiter();
    for follow in [false, true] {
        let deadline = Instant::now() + Duration::from_millis(3);
        let end = if follow { running.0.follow(&w, Some(deadline), || false) } else { running.0.wait(&w, Some(deadline), || false) };
        assert_eq!(end, WaitEnd::TimedOut);
        assert!(Instant::now() >= deadline);
    }
    assert_eq!(running.0.wait(&w, Some(Instant::now()), || true), WaitEnd::Ready, "a look comes first");
}

/// The condition of the wait is true, and no notification has come.
#[test]
fn lost_notification_is_found_at_the_deadline() {
    let running = Running::new();
    let w = running.0.waiter();
    for notified in [false, true] {
        let mut looks = 0;
        let ready = || {
            looks += 1;
            if notified && looks == 2 {
                w.notify();
            }
            looks > 1
        };
        let end = running.0.wait_announced(&w, Some(Instant::now() + Duration::from_millis(3)), ready);
        assert_eq!(end, if notified { WaitEnd::Ready } else { WaitEnd::Unannounced });
    }
    assert_eq!(running.0.wait_announced(&w, Some(Instant::now()), || true), WaitEnd::Ready, "no sleep");
}

struct Deaf;

impl Source for Deaf {
    fn ready(&self, _events: u32) {}
}

/// A descriptor is closed, and the next one gets its number: late changes for the first do not affect the second.
#[test]
fn descriptor_number_belongs_to_its_last_owner() {
    let running = Running::new();
    let poller = &running.0;
    let (first, second) = (sys::eventfd().unwrap(), sys::eventfd().unwrap());
    let (number, old) = (first.as_raw_fd(), poller.token());
    poller.add(old, number, Arc::new(Deaf)).unwrap();
    sys::replace(number, second.as_raw_fd());
    let bell = Arc::new(Bell { event: first, rung: AtomicU64::new(0), waiter: poller.waiter() });
    let token = poller.token();
    poller.add(token, number, bell.clone()).unwrap();
    let rings = |n: u64| {
        sys::eventfd_signal(number);
        assert_eq!(wait(&running, &bell.waiter, || bell.rung.load(Ordering::Relaxed) >= n), WaitEnd::Ready);
    };
    poller.want_write(old, number, true);
    rings(1);
    poller.remove(old, number);
    rings(2);
    poller.remove(token, number);
    assert!(poller.arm(token, number).is_err(), "it is not in the set");
}

extern "C" fn note(_: libc::c_int) {}

/// A signal handler that runs in a waiting thread ends the wait, whether the thread leads or follows.
#[test]
fn signal_ends_a_wait() {
    // SAFETY: the handler does nothing. Without SA_RESTART a signal interrupts system calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let running = Arc::new(Running::new());
    for follow in [false, true] {
        let (tx, rx) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let (r, o) = (running.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            // SAFETY: no arguments.
            tx.send(unsafe { libc::pthread_self() }).unwrap();
            let w = r.0.waiter();
            let end = if follow { r.0.follow(&w, None, || false) } else { r.0.wait(&w, None, || false) };
            o.store(true, Ordering::Release);
            end
        });
        let id = rx.recv().unwrap();
        while !over.load(Ordering::Acquire) {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
            std::thread::yield_now();
        }
        assert_eq!(thread.join().unwrap(), WaitEnd::Interrupted);
    }
}

#[test]
fn tasks_run_on_the_io_thread_in_order() {
    let running = Running::new();
    let (tx, rx) = channel();
    for n in 0..50 {
        let tx = tx.clone();
        running.0.spawn(Box::new(move || tx.send((n, std::thread::current().id())).unwrap()));
    }
    let io = running.io();
    (0..50).for_each(|n| assert_eq!(rx.recv_timeout(HANG).unwrap(), (n, io)));
}

/// An earlier timer shortens a wait that has begun.
#[test]
fn nearer_timer_runs_before_a_later_one() {
    let running = Running::new();
    let (tx, rx) = channel();
    let later = tx.clone();
    running.0.later(10 * HANG, Box::new(move || later.send("far").unwrap()));
    running.0.spawn(Box::new({
        let tx = tx.clone();
        move || tx.send("task").unwrap()
    }));
    assert_eq!(rx.recv_timeout(HANG).unwrap(), "task");
    running.0.later(Duration::from_millis(1), Box::new(move || tx.send("near").unwrap()));
    assert_eq!(rx.recv_timeout(HANG).unwrap(), "near");
}

#[test]
fn timers_are_due_in_order() {
    let mut timers = Timers::default();
    let start = Instant::now();
    let at = |n| start + Duration::from_secs(n);
    let ran = Arc::new(AtomicU32::new(0));
    let task = |digit: u32| {
        let ran = ran.clone();
        Box::new(move || ran.store(ran.load(Ordering::Relaxed) * 10 + digit, Ordering::Relaxed)) as net::timers::Task
    };
    assert_eq!(timers.timeout(start), None);
    assert!(timers.add(at(5), task(4)).1);
    assert!(timers.add(at(1), task(1)).1);
    assert!(!timers.add(at(3), task(2)).1, "not the first");
    assert!(!timers.add(at(3), task(3)).1, "of two at the same time the older goes first");
    assert_eq!(timers.timeout(start), Some(Duration::from_secs(1)));
    assert_eq!(timers.timeout(at(2)), Some(Duration::ZERO), "overdue");
    timers.due(at(0)).into_iter().for_each(|t| t());
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    timers.due(at(3)).into_iter().for_each(|t| t());
    assert_eq!(ran.load(Ordering::Relaxed), 123);
    timers.due(at(9)).into_iter().for_each(|t| t());
    assert_eq!(ran.load(Ordering::Relaxed), 1234);
    assert_eq!(timers.timeout(at(9)), None);
}

#[test]
fn cancelled_task_is_never_due() {
    let (mut timers, zero) = (Timers::default(), Instant::now());
    let (first, _) = timers.add(zero, Box::new(|| panic!("the task was cancelled")));
    timers.add(zero + Duration::from_secs(1), Box::new(|| {}));
    assert!(timers.cancel(first).is_some() && timers.cancel(first).is_none());
    assert_eq!(timers.timeout(zero), Some(Duration::from_secs(1)));
    assert!(timers.due(zero).is_empty());
}
