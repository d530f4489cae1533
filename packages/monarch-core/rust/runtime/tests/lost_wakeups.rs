//! The check for lost wake-ups of mailboxes: consumers that sleep although a message waits for them are woken, and no others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use net::{Poller, RecvPart, WaitEnd, sys};
use runtime::mailboxes::mailbox::{Consumer, Delivery, LostAt, Sleeper};
use runtime::{Incoming, Mailbox};
use wire::{CallId, MailboxId, ProcUid};

const HANG: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

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

/// An event loop that does nothing by itself.
#[derive(Default)]
struct Loop {
    awake: AtomicBool,
    work: AtomicBool,
    sleeps: AtomicU64,
    woken: AtomicU64,
}

impl Sleeper for Loop {
    fn is_asleep(&self) -> bool {
        !self.awake.load(Ordering::Relaxed)
    }

    fn has_work(&self) -> bool {
        self.work.load(Ordering::Relaxed)
    }

    fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

struct Actor {
    mailbox: Arc<Mailbox>,
    sleeper: Arc<Loop>,
    start: Instant,
}

impl Actor {
    fn new() -> Self {
        let (mailbox, sleeper) = (Mailbox::new(MailboxId(1)), Arc::new(Loop::default()));
        mailbox.set_consumer(Consumer::Loop(sys::eventfd().unwrap(), Some(sleeper.clone())));
        Actor { mailbox, sleeper, start: Instant::now() }
    }

    fn check_wakeup(&self, tenths: u32) -> Option<LostAt> {
        self.mailbox.check_wakeup(self.start + tenths * SECOND / 10)
    }

    fn push(&self) {
        assert!(self.mailbox.push(message()).is_ok());
    }
}

#[test]
fn unread_message_wakes_a_sleeping_loop() {
    let actor = Actor::new();
    assert_eq!((actor.check_wakeup(0), actor.check_wakeup(20)), (None, None), "nothing lies there");
    actor.push();
    assert_eq!((actor.check_wakeup(40), actor.check_wakeup(45), actor.check_wakeup(50)), (None, None, Some(LostAt::Descriptor)));
    assert_eq!(actor.sleeper.woken.load(Ordering::Relaxed), 1);
    assert_eq!((actor.check_wakeup(60), actor.check_wakeup(70)), (None, Some(LostAt::Descriptor)), "again, as long as it does not help");
}

#[test]
fn unread_event_wakes_a_sleeping_loop() {
    let actor = Actor::new();
    assert!(actor.mailbox.push_event(Box::from(&b"e"[..])));
    assert_eq!((actor.check_wakeup(0), actor.check_wakeup(10)), (None, Some(LostAt::Descriptor)));
}

#[test]
fn unreported_descriptor_wakes_the_loop() {
    let actor = Actor::new();
    actor.sleeper.work.store(true, Ordering::Relaxed);
    assert_eq!((actor.check_wakeup(0), actor.check_wakeup(10)), (None, Some(LostAt::Poller)));
    assert_eq!(actor.sleeper.woken.load(Ordering::Relaxed), 1);
}

#[test]
fn active_loop_is_not_woken() {
    type Change = fn(&Actor);
    let changes: [(&str, Change); 5] = [
        ("is awake", |a| a.sleeper.awake.store(true, Ordering::Relaxed)),
        ("has slept again", |a| a.sleeper.sleeps.store(1, Ordering::Relaxed)),
        ("has one in hand", |a| assert!(matches!(a.mailbox.pop(), Some(Delivery::Message(_))))),
        ("has taken one", |a| {
            assert!(matches!(a.mailbox.pop(), Some(Delivery::Message(_))));
            a.mailbox.set_doing(None);
        }),
        ("has ended", |a| drop(a.mailbox.close(Arc::from(&b"why"[..])))),
    ];
    for (what, change) in changes {
        let actor = Actor::new();
        (0..3).for_each(|_| actor.push());
        assert_eq!(actor.check_wakeup(0), None);
        change(&actor);
        assert_eq!((actor.check_wakeup(10), what), (None, what));
    }
}

/// The wake-up by each event is under way when the mailbox is checked, and the actor takes no message between the checks.
#[test]
fn actor_that_takes_only_events_is_awake() {
    let takes: [fn(&Mailbox); 2] = [
        |m| {
            assert!(matches!(m.pop(), Some(Delivery::Event(_))));
            m.set_doing(None);
        },
        |m| assert!(m.pop_event().is_some()),
    ];
    for take in takes {
        let actor = Actor::new();
        assert!(actor.mailbox.push_event(Box::from(&b"first"[..])));
        assert_eq!(actor.check_wakeup(0), None);
        take(&actor.mailbox);
        assert!(actor.mailbox.push_event(Box::from(&b"second"[..])));
        assert_eq!(actor.check_wakeup(10), None, "another event is the reason");
        assert_eq!(actor.check_wakeup(20), Some(LostAt::Descriptor), "no progress since");
    }
}

#[test]
fn unnotified_thread_is_woken() {
    let poller = Poller::new().unwrap();
    let (mailbox, waiter) = (Mailbox::new(MailboxId(1)), poller.waiter());
    mailbox.set_consumer(Consumer::Thread(waiter.clone()));
    let (looked, looks) = mpsc::channel();
    let (p, w) = (poller.clone(), waiter.clone());
    // The consumer does not see the first notification.
    let thread = std::thread::spawn(move || {
        let mut seen = 0;
        let ready = || {
            seen += 1;
            looked.send(()).unwrap();
            seen > 2
        };
        p.follow(&w, Some(Instant::now() + HANG), ready)
    });
    let sleeps = || {
        looks.recv_timeout(HANG).unwrap();
        while !waiter.is_asleep() {
            std::thread::yield_now();
        }
    };
    sleeps();
    assert!(mailbox.push(message()).is_ok());
    sleeps();
    let now = Instant::now();
    assert_eq!((mailbox.check_wakeup(now), mailbox.check_wakeup(now + SECOND)), (None, Some(LostAt::Thread)));
    assert_eq!(thread.join().unwrap(), WaitEnd::Ready);
}
