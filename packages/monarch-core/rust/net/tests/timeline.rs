//! Simulated time of real threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use net::{Poller, Source, Timeline, WaitEnd, Waiter, sys};

const HOUR: Duration = Duration::from_secs(3600);

struct World {
    timeline: Arc<Timeline>,
    poller: Arc<Poller>,
    io: Option<JoinHandle<()>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let timeline = Timeline::new(seed);
        let poller = Poller::simulated(timeline.clone()).unwrap();
        let theirs = poller.clone();
        World { timeline, poller, io: Some(std::thread::spawn(move || theirs.run())) }
    }

    /// An enrolled thread: the clock stands while it runs.
    fn start<T: Send + 'static>(
        &self,
        group: u64,
        root: bool,
        body: impl FnOnce(&Poller, &Timeline) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.timeline.enroll(group);
        let (timeline, poller) = (self.timeline.clone(), self.poller.clone());
        std::thread::spawn(move || {
            timeline.enter(group, root);
            let result = body(&poller, &timeline);
            timeline.dismiss(timeline.leave().unwrap());
            poller.wake();
            result
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.poller.stop();
        self.io.take().unwrap().join().unwrap();
    }
}

fn nap(poller: &Poller, waiter: &Waiter, time: Duration) -> WaitEnd {
    poller.wait(waiter, Some(poller.now() + time), || false)
}

#[test]
fn hours_pass_at_once_and_in_order() {
    let world = World::new(0);
    let log = Arc::new(Mutex::new(Vec::new()));
    // An extra enrolment keeps the clock from moving before all threads sleep.
    world.timeline.enroll(0);
    let threads: Vec<_> = [3, 1, 2]
        .into_iter()
        .map(|hours| {
            let log = log.clone();
            world.start(0, false, move |poller, timeline| {
                assert_eq!(nap(poller, &poller.waiter(), HOUR * hours), WaitEnd::TimedOut);
                log.lock().unwrap().push((hours, timeline.elapsed()));
            })
        })
        .collect();
    assert_eq!(world.timeline.elapsed(), Duration::ZERO);
    world.timeline.dismiss(0);
    world.poller.wake();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*log.lock().unwrap(), [(1, HOUR), (2, HOUR * 2), (3, HOUR * 3)]);
}

/// A socket that the poller reads, and the waiter that it notifies.
struct Inbox {
    end: std::os::fd::OwnedFd,
    waiter: Arc<Waiter>,
    got: AtomicUsize,
}

impl Source for Inbox {
    fn ready(&self, _events: u32) {
        use std::os::fd::AsRawFd;
        let mut bytes = [0; 64];
        while let Ok(n) = sys::read(self.end.as_raw_fd(), &mut bytes) {
            if n == 0 {
                return;
            }
            self.got.fetch_add(n, Ordering::AcqRel);
            self.waiter.notify();
        }
    }
}

#[test]
fn clock_waits_for_messages_in_transit() {
    use std::os::fd::AsRawFd;
    for _ in 0..200 {
        let world = World::new(0);
        let (ours, theirs) = sys::socketpair().unwrap();
        let inbox = Arc::new(Inbox { end: ours, waiter: world.poller.waiter(), got: AtomicUsize::new(0) });
        world.poller.add(world.poller.token(), inbox.end.as_raw_fd(), inbox.clone()).unwrap();
        let reader = inbox.clone();
        // An extra enrolment, until both threads have started.
        world.timeline.enroll(0);
        let waits = world.start(0, false, move |poller, timeline| {
            let ready = || reader.got.load(Ordering::Acquire) > 0;
            assert_eq!(poller.wait(&reader.waiter, Some(poller.now() + HOUR), ready), WaitEnd::Ready);
            timeline.elapsed()
        });
        // The thread sends as its last act: from then on only the message keeps the clock from moving.
        let sends = world.start(0, false, move |_, _| sys::send(theirs.as_raw_fd(), &[b"x"], &[]).map(|n| (n, theirs)).unwrap());
        world.timeline.dismiss(0);
        world.poller.wake();
        let (sent, _open) = sends.join().unwrap();
        assert_eq!((sent, waits.join().unwrap()), (1, Duration::ZERO));
    }
}

#[test]
fn timers_and_threads_share_the_clock() {
    let world = World::new(0);
    let log = Arc::new(Mutex::new(Vec::new()));
    for hours in [1u32, 3] {
        let (log, timeline) = (log.clone(), world.timeline.clone());
        world.poller.later(HOUR * hours, Box::new(move || log.lock().unwrap().push(("timer", timeline.elapsed()))));
    }
    let theirs = log.clone();
    let thread = world.start(0, false, move |poller, timeline| {
        let waiter = poller.waiter();
        for _ in 0..2 {
            assert_eq!(nap(poller, &waiter, HOUR * 2), WaitEnd::TimedOut);
            theirs.lock().unwrap().push(("thread", timeline.elapsed()));
        }
    });
    thread.join().unwrap();
    let expected = [("timer", HOUR), ("thread", HOUR * 2), ("timer", HOUR * 3), ("thread", HOUR * 4)];
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn root_is_notified_of_a_deadlock() {
    let world = World::new(0);
    let (stop, stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let waiter = world.poller.waiter();
    let (theirs, seen, flag) = (waiter.clone(), stop.clone(), stopped.clone());
    let other = world.start(0, false, move |poller, _| {
        let end = poller.wait(&theirs, None, || seen.load(Ordering::Acquire));
        flag.store(true, Ordering::Release);
        end
    });
    let root = world.start(0, true, |poller, timeline| {
        let end = poller.wait(&poller.waiter(), None, || false);
        (end, timeline.elapsed())
    });
    assert_eq!(root.join().unwrap(), (WaitEnd::Stuck, Duration::ZERO));
    assert!(!stopped.load(Ordering::Acquire));
    stop.store(true, Ordering::Release);
    waiter.notify();
    assert_eq!(other.join().unwrap(), WaitEnd::Ready);
}

#[test]
fn threads_of_a_killed_group_end() {
    let world = World::new(0);
    let group = world.timeline.new_group();
    let asleep = world.start(group, false, |poller, _| poller.wait(&poller.waiter(), None, || false));
    let (go, gone) = mpsc::channel::<()>();
    // The thread is busy when it is killed: it ends at its next wait, and the clock does not stop for it.
    let busy = world.start(group, false, move |poller, _| {
        gone.recv().unwrap();
        poller.wait(&poller.waiter(), None, || true)
    });
    world.timeline.kill(group);
    assert!(world.timeline.is_dead(group));
    assert_eq!(asleep.join().unwrap(), WaitEnd::Killed);
    let time = world.start(0, false, |poller, timeline| {
        nap(poller, &poller.waiter(), HOUR);
        timeline.elapsed()
    });
    assert_eq!(time.join().unwrap(), HOUR);
    go.send(()).unwrap();
    assert_eq!(busy.join().unwrap(), WaitEnd::Killed);
}

#[test]
fn waits_end_with_their_world() {
    let world = World::new(0);
    let (poller, timeline) = (world.poller.clone(), world.timeline.clone());
    let outside = std::thread::spawn(move || poller.wait(&poller.waiter(), None, || false));
    while timeline.sleeping() == 0 {
        std::thread::yield_now();
    }
    let poller = world.poller.clone();
    drop(world);
    assert_eq!(outside.join().unwrap(), WaitEnd::Stuck);
    assert_eq!(nap(&poller, &poller.waiter(), HOUR), WaitEnd::Stuck);
    assert_eq!(poller.wait(&poller.waiter(), None, || true), WaitEnd::Ready);
}

/// The order in which threads with the same deadline continue. Each one sleeps before the next one starts.
fn order(seed: u64) -> Vec<usize> {
    let world = World::new(seed);
    let log = Arc::new(Mutex::new(Vec::new()));
    let due = world.poller.now() + HOUR;
    let mut threads = Vec::new();
    world.timeline.enroll(0);
    for i in 0..8 {
        let log = log.clone();
        let (reported, asleep) = mpsc::channel();
        threads.push(world.start(0, false, move |poller, _| {
            let mut looks = 0;
            // `ready` is called once before the sleep; the thread then goes to sleep.
            let end = poller.wait(&poller.waiter(), Some(due), || {
                looks += 1;
                if looks == 1 {
                    reported.send(()).unwrap();
                }
                false
            });
            assert_eq!(end, WaitEnd::TimedOut);
            log.lock().unwrap().push(i);
        }));
        asleep.recv().unwrap();
        while world.timeline.sleeping() < i + 1 {
            std::thread::yield_now();
        }
    }
    world.timeline.dismiss(0);
    world.poller.wake();
    threads.into_iter().for_each(|t| t.join().unwrap());
    log.lock().unwrap().clone()
}

#[test]
fn seed_decides_the_order_of_threads() {
    assert_eq!(order(0), (0..8).collect::<Vec<_>>());
    let shuffled = order(7);
    assert_eq!(order(7), shuffled, "the same seed, the same order");
    assert!((1..8).any(|seed| order(seed) != order(0)));
    let mut sorted = shuffled;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..8).collect::<Vec<_>>());
}
