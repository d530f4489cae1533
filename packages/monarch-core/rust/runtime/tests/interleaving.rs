//! Mailbox, credit and free list under random schedules of their threads. A lost wake-up shows as a deadlock.
//!
//! cargo test -p monarch-runtime --features shuttle
#![cfg(feature = "shuttle")]

use net::arena::FreeList;
use net::sys::Descriptors;
use net::{Link, LinkHandler, Poller, RecvPart};
use runtime::mailboxes::credit::WINDOW;
use runtime::mailboxes::mailbox::{Consumer, Delivery, Pushed};
use runtime::transfers::offers::Offers;
use runtime::{Incoming, Mailbox, Mode, Peer, PendingCall};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;
use wire::{CallId, Frame, MailboxId, ProcUid, Status};

/// Runs as many schedules as fit in a second or two: half of them random, half with a few well-placed preemptions.
fn explore(schedules: usize, f: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(f.clone(), schedules / 2);
    shuttle::check_pct(f, schedules / 2, 3);
}

/// The descriptor that an event loop sees: a flag that is set until the loop has checked it.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn consumer(self: &Arc<Self>) -> Consumer {
        let bell = self.clone();
        Consumer::Model(Box::new(move || {
            *bell.0.lock().unwrap() = true;
            bell.1.notify_one();
        }))
    }

    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn message(sender: u64, n: u32, len: usize) -> Incoming {
    Incoming {
        from: ProcUid(sender),
        dest: MailboxId(1),
        sender: MailboxId(sender),
        call_id: CallId(0),
        rank: n,
        flags: 0,
        trace: None,
        due: None,
        method: Box::default(),
        extent: Box::default(),
        parts: vec![RecvPart::Inline { data: vec![0; len].into(), readonly: true }],
    }
}

/// Checks the mailbox only after the bell has rung, as an event loop does. Ends when all messages have arrived or the mailbox is closed.
fn consume(mailbox: &Mailbox, bell: &Bell, want: usize) -> Vec<(u64, u32)> {
    let mut got = Vec::new();
    while got.len() < want && mailbox.closed().is_none() {
        bell.wait();
        while let Some(d) = mailbox.pop() {
            if let Delivery::Message(m) = d {
                got.push((m.sender.0, m.rank));
            }
        }
    }
    got
}

fn in_order(got: &[(u64, u32)], sender: u64) -> bool {
    got.iter().filter(|m| m.0 == sender).map(|m| m.1).is_sorted()
}

#[test]
fn every_message_wakes_its_consumer() {
    explore(4000, || {
        let (mailbox, bell) = (Mailbox::new(MailboxId(1)), Arc::new(Bell::default()));
        let senders: Vec<_> = (0..2)
            .map(|s| {
                let mailbox = mailbox.clone();
                thread::spawn(move || (0..2).for_each(|n| assert!(mailbox.push(message(s, n, 0)).is_ok())))
            })
            .collect();
        // The consumer is set while messages arrive.
        mailbox.set_consumer(bell.consumer());
        let got = consume(&mailbox, &bell, 4);
        assert_eq!(got.len(), 4);
        assert!(in_order(&got, 0) && in_order(&got, 1));
        senders.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn events_wake_the_consumer_too() {
    explore(2000, || {
        let (mailbox, bell) = (Mailbox::new(MailboxId(1)), Arc::new(Bell::default()));
        let other = mailbox.clone();
        let sender = thread::spawn(move || {
            assert!(other.push_event(Box::from(&b"e"[..])));
            assert!(other.push(message(0, 0, 0)).is_ok());
            assert!(other.push_event(Box::from(&b"f"[..])));
        });
        mailbox.set_consumer(bell.consumer());
        let mut events = Vec::new();
        let mut messages = 0;
        while events.len() + messages < 3 {
            bell.wait();
            while let Some(d) = mailbox.pop() {
                match d {
                    Delivery::Event(e) => events.push(e[0]),
                    Delivery::Message(_) => messages += 1,
                }
            }
        }
        assert_eq!((&events[..], messages), (&b"ef"[..], 1));
        sender.join().unwrap();
    });
}

/// Each message is handled, left in the mailbox, or refused: exactly one of these.
#[test]
fn close_loses_nothing_and_wakes_the_consumer() {
    explore(4000, || {
        let (mailbox, bell) = (Mailbox::new(MailboxId(1)), Arc::new(Bell::default()));
        mailbox.set_consumer(bell.consumer());
        let senders: Vec<_> = (0..2)
            .map(|s| {
                let mailbox = mailbox.clone();
                thread::spawn(move || {
                    (0..2).filter_map(|n| mailbox.push(message(s, n, 0)).err()).map(|(m, _)| (s, m.rank)).collect::<Vec<_>>()
                })
            })
            .collect();
        let closing = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.close(std::sync::Arc::from(&b"why"[..])))
        };
        let mut all = consume(&mailbox, &bell, usize::MAX);
        assert!(in_order(&all, 0) && in_order(&all, 1));
        let (left, credit) = closing.join().unwrap();
        assert_eq!(credit.len(), left.len());
        all.extend(left.iter().map(|m| (m.sender.0, m.rank)));
        senders.into_iter().for_each(|t| all.extend(t.join().unwrap()));
        while let Some(Delivery::Message(m)) = mailbox.pop() {
            all.push((m.sender.0, m.rank));
        }
        all.sort();
        assert_eq!(all, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    });
}

/// A pending call that leaves has no message, or its message goes to another pending call: no message is lost, and none is in two.
#[test]
fn abandoned_calls_lose_no_message() {
    explore(4000, || {
        let mailbox = Mailbox::new(MailboxId(1));
        let cells: Vec<_> = (0..2).map(|n| PendingCall::new(CallId(n), Mode::FirstError, 1, std::sync::Arc::from([]))).collect();
        for cell in &cells {
            assert!(mailbox.take_into(cell).is_none());
        }
        let leaving = {
            let (mailbox, cell) = (mailbox.clone(), cells[0].clone());
            thread::spawn(move || assert!(mailbox.abandon(&cell)))
        };
        for n in 0..3 {
            assert!(mailbox.push(message(1, n, n as usize)).is_ok());
        }
        leaving.join().unwrap();
        assert!(cells[0].outcome(0).is_none());
        let taken = |cell: &PendingCall| cell.outcome(0).map(|o| o.parts[0].len());
        let mut all = vec![taken(&cells[1]).unwrap()];
        for n in 2..4 {
            let cell = PendingCall::new(CallId(n), Mode::FirstError, 1, std::sync::Arc::from([]));
            assert!(mailbox.take_into(&cell).is_none());
            all.push(taken(&cell).unwrap());
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

/// Each pending call that takes one message gets one. The ones that are left when the mailbox closes are notified.
#[test]
fn receives_get_one_message_each() {
    explore(4000, || {
        let mailbox = Mailbox::new(MailboxId(1));
        let cells: Vec<_> = (0..3).map(|n| PendingCall::new(CallId(n), Mode::FirstError, 1, std::sync::Arc::from([]))).collect();
        let taking = {
            let (mailbox, cells) = (mailbox.clone(), cells.clone());
            thread::spawn(move || cells.iter().for_each(|c| assert!(mailbox.take_into(c).is_none())))
        };
        let pushing: Vec<_> = (0..2)
            .map(|s| {
                let mailbox = mailbox.clone();
                thread::spawn(move || assert!(matches!(mailbox.push(message(s, 0, 0)), Ok(Pushed::Queued | Pushed::Taken(None)))))
            })
            .collect();
        pushing.into_iter().for_each(|t| t.join().unwrap());
        taking.join().unwrap();
        let (left, _) = mailbox.close(std::sync::Arc::from(&b""[..]));
        assert!(left.is_empty());
        let status: Vec<_> = cells.iter().map(|c| c.outcome(0).map(|o| o.status)).collect();
        assert_eq!(status, [Some(Status::Ok), Some(Status::Ok), Some(Status::Closed)]);
    });
}

struct IgnoredLink;

impl LinkHandler for IgnoredLink {
    fn frame(&self, _: &std::sync::Arc<Link>, _: Frame, _: &mut Descriptors) {}
    fn down(&self, _: &std::sync::Arc<Link>) {}
}

/// Messages within a process. The first one of each sender is as large as the window, so the others wait for credit.
fn stay_in_order(senders: u64, each: u32) {
    static POLLER: std::sync::OnceLock<std::sync::Arc<Poller>> = std::sync::OnceLock::new();
    let poller = POLLER.get_or_init(|| Poller::new().unwrap()).clone();
    let offers = Offers::new(&poller);
    let peer = Peer::new(ProcUid(1), Link::new(ProcUid(1), poller, std::sync::Arc::new(IgnoredLink)), offers);
    let (mailbox, bell) = (Mailbox::new(MailboxId(1)), Arc::new(Bell::default()));
    mailbox.set_consumer(bell.consumer());
    let sending: Vec<_> = (0..senders)
        .map(|s| {
            let (peer, mailbox) = (peer.clone(), mailbox.clone());
            thread::spawn(move || {
                for n in 0..each {
                    let m = message(s, n, if n == 0 { WINDOW as usize } else { 0 });
                    if let Ok(Some(m)) = peer.admit_local(m, true) {
                        assert!(mailbox.push(m).is_ok());
                    }
                }
            })
        })
        .collect();
    let (mut got, mut giving) = (Vec::new(), Vec::new());
    while got.len() < senders as usize * each as usize {
        bell.wait();
        while let Some(Delivery::Message(m)) = mailbox.pop() {
            got.push((m.sender.0, m.rank));
            // Some credit comes back on a thread of its own.
            let (peer, to, cost) = (peer.clone(), mailbox.clone(), m.cost());
            let refill = move || peer.refill(MailboxId(1), cost, |m| assert!(to.push(m).is_ok()));
            if m.rank == 0 { giving.push(thread::spawn(refill)) } else { refill() }
        }
    }
    assert!((0..senders).all(|s| in_order(&got, s)), "{got:?}");
    sending.into_iter().chain(giving).for_each(|t| t.join().unwrap());
    assert!(peer.has_credit(MailboxId(1)));
}

#[test]
fn local_messages_stay_in_order_under_credit() {
    explore(4000, || stay_in_order(1, 4));
    explore(2000, || stay_in_order(2, 3));
}

#[test]
fn free_list_gives_no_range_twice() {
    explore(2000, || {
        let (list, used) = (Arc::new(Mutex::new(FreeList::new(12))), Arc::new(Mutex::new([false; 12])));
        let threads: Vec<_> = (1..4u64)
            .map(|n| {
                let (list, used) = (list.clone(), used.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let at = list.lock().unwrap().take(n).expect("there is room for all");
                        let units = at as usize..(at + n) as usize;
                        used.lock().unwrap()[units.clone()].iter_mut().for_each(|u| assert!(!std::mem::replace(u, true)));
                        used.lock().unwrap()[units].fill(false);
                        list.lock().unwrap().give(at, n);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(list.lock().unwrap().is_whole(12));
    });
}
