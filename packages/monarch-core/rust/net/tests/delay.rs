//! A delay changes when frames arrive, but neither their number nor their order.

mod side;

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use side::{Got, Side, connected};

const SHORT: Duration = Duration::from_millis(2);
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

fn send(side: &Side, numbers: std::ops::Range<u8>) {
    for n in numbers {
        let fds = if n % 5 == 0 { vec![net::sys::pipe().unwrap().0] } else { vec![] };
        // Some frames are larger than a socket takes at once.
        let mut body = vec![n; if n % 7 == 0 { 600_000 } else { 10 }];
        body[0] = fds.len() as u8;
        side.send_raw(&body, fds);
    }
}

fn expect(side: &Side, numbers: std::ops::Range<u8>) {
    for n in numbers {
        let (body, fds) = side.next_raw();
        assert_eq!((body[1], fds.len()), (n, usize::from(n % 5 == 0)));
    }
}

/// The delay is on either side, and ends while frames are held.
#[test]
fn frames_stay_in_order() {
    for sender in [true, false] {
        let (a, b) = connected();
        let delay = if sender { &a.poller.delay } else { &b.poller.delay };
        send(&a, 0..10);
        delay.set(SHORT);
        send(&a, 10..40);
        delay.set(SHORT / 10);
        send(&a, 40..60);
        delay.set(Duration::ZERO);
        send(&a, 60..80);
        expect(&b, 0..80);
    }
}

#[test]
fn delayed_frames_arrive_when_the_link_ends() {
    let (a, b) = connected();
    b.poller.delay.set(FOR_EVER);
    send(&a, 1..4);
    assert!(matches!(b.got.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout)));
    a.link.close();
    expect(&b, 1..4);
    assert!(matches!(b.next(), Got::Down));
}

#[test]
fn drain_takes_delayed_frames() {
    let (a, b) = connected();
    b.poller.delay.set(FOR_EVER);
    send(&a, 1..4);
    // The frames were sent whole: they are in the socket, or read and held.
    assert_eq!(a.link.queued(), 0);
    while b.got.try_recv().is_ok() {}
    // Another thread may be reading now; it then holds the frames, and the next drain finds them.
    let mut got = 0;
    while got < 3 {
        b.link.drain();
        while b.got.try_recv().is_ok() {
            got += 1;
        }
    }
}
