//! One end of a connection, with a poller of its own.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use net::sys::{self, Descriptors};
use net::{Link, LinkHandler, Poller, RecvPart};
use wire::{Frame, ProcUid};

/// Time after which a test that hangs fails. No step takes long.
pub const HANG: Duration = Duration::from_secs(30);

/// An event that a link has delivered.
pub enum Got {
    Frame(Frame, Vec<OwnedFd>),
    Parts(Vec<Option<RecvPart>>),
    Down,
}

struct Handler(Mutex<Sender<Got>>);

impl LinkHandler for Handler {
    fn frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors) {
        let got = match frame {
            Frame::Message(m) => Got::Parts(m.parts.into_iter().map(|p| RecvPart::accept(p, Some(link))).collect()),
            // The first byte of a test frame is the number of its descriptors.
            Frame::Raw(body) => {
                let n = body.first().map_or(0, |n| *n as usize).min(fds.len());
                Got::Frame(Frame::Raw(body), fds.drain(..n).flatten().collect())
            }
            other => Got::Frame(other, Vec::new()),
        };
        let _ = self.0.lock().unwrap().send(got);
    }

    fn down(&self, _link: &Arc<Link>) {
        let _ = self.0.lock().unwrap().send(Got::Down);
    }
}

pub struct Side {
    pub poller: Arc<Poller>,
    pub link: Arc<Link>,
    pub got: Receiver<Got>,
    thread: Option<JoinHandle<()>>,
}

impl Side {
    /// A link without a socket, on a poller that does not run yet.
    pub fn new() -> Self {
        let poller = Poller::new().unwrap();
        let (tx, got) = channel();
        let link = Link::new(ProcUid(1), poller.clone(), Arc::new(Handler(Mutex::new(tx))));
        Side { poller, link, got, thread: None }
    }

    pub fn start(&mut self) {
        let poller = self.poller.clone();
        self.thread = Some(std::thread::spawn(move || poller.run()));
    }

    pub fn next(&self) -> Got {
        self.got.recv_timeout(HANG).expect("nothing came")
    }

    pub fn next_raw(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        match self.next() {
            Got::Frame(Frame::Raw(body), fds) => (body.into(), fds),
            Got::Frame(other, _) => panic!("not the frame that was sent: {other:?}"),
            Got::Parts(_) => panic!("a message"),
            Got::Down => panic!("the link is down"),
        }
    }

    pub fn next_parts(&self) -> Vec<Option<RecvPart>> {
        match self.next() {
            Got::Parts(p) => p,
            _ => panic!("not a message"),
        }
    }

    pub fn send_raw(&self, body: &[u8], fds: Vec<OwnedFd>) {
        self.link.send(&[&Frame::Raw(body.into()).encode()], fds).unwrap();
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.link.close();
        self.poller.stop();
        if let Some(t) = self.thread.take() {
            t.join().unwrap();
        }
    }
}

/// Two connected ends whose pollers run.
pub fn connected() -> (Side, Side) {
    let (mut a, mut b) = (Side::new(), Side::new());
    let (x, y) = sys::socketpair().unwrap();
    a.link.attach(x).unwrap();
    b.link.attach(y).unwrap();
    a.start();
    b.start();
    (a, b)
}

/// Waits until `to` has handled all frames that `from` has sent.
pub fn settle(from: &Side, to: &Side) {
    from.send_raw(b"\0settle", Vec::new());
    assert_eq!(to.next_raw().0, b"\0settle");
}
