//! Attempts to open connections to a host whose port accepts and closes: their number depends on pauses, and not on messages.
#![cfg(not(feature = "shuttle"))]

mod hosts;

use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hosts::{CLIENT, Cluster, Host, Process, host_id};
use net::trust::Policy;
use runtime::Mode;
use wire::CallId;
use wire::greeting::JobSettings;

/// So long that no host is suspected: the detector sends no probes.
const NEVER_MS: u64 = 1_000_000_000;
/// The first pause between attempts is twice as long. Each pause is twice as long as the one before it.
const PAUSE: Duration = Duration::from_millis(20);

/// A port that forwards connections to a worker, and then closes and counts them.
struct Front {
    port: u16,
    closes: AtomicBool,
    closed: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Front {
    fn start(worker: u16) -> Arc<Front> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let front = Arc::new(Front { port, closes: AtomicBool::new(false), closed: AtomicUsize::new(0), open: Mutex::default() });
        let own = front.clone();
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if own.closes.load(Ordering::SeqCst) {
                    own.closed.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let remote = TcpStream::connect(("127.0.0.1", worker)).unwrap();
                own.open.lock().unwrap().extend([near.try_clone().unwrap(), remote.try_clone().unwrap()]);
                for (mut from, mut to) in [(near.try_clone().unwrap(), remote.try_clone().unwrap()), (remote, near)] {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
            }
        });
        front
    }

    /// Ends all connections, and closes those that come from now on.
    fn close(&self) {
        self.closes.store(true, Ordering::SeqCst);
        self.open.lock().unwrap().drain(..).for_each(|s| drop(s.shutdown(Shutdown::Both)));
    }

    /// The number of connections that were closed, after all that were requested until now.
    fn count(&self) -> usize {
        // Connections are accepted in the order in which they were requested.
        let _ = TcpStream::connect(("127.0.0.1", self.port)).unwrap().read(&mut [0]);
        self.closed.fetch_sub(1, Ordering::SeqCst) - 1
    }
}

/// Waits while simulated time stands, since this thread does not wait through the poller.
fn until(mut ready: impl FnMut() -> bool) {
    while !ready() {
        std::thread::yield_now();
    }
}

/// Waits until the I/O thread has executed all tasks.
fn settle(process: &Process) {
    let (done, wait) = channel();
    process.node.poller.spawn(Box::new(move || done.send(()).unwrap()));
    wait.recv().unwrap();
}

#[test]
fn messages_to_a_closing_port_add_no_attempts() {
    let settings = JobSettings { loss_ms: NEVER_MS, reconnect_ms: NEVER_MS, lease_ms: 0 };
    let mut cluster = Cluster::with_client(Host::simulated(CLIENT.0), Policy::Insecure, settings);
    let front = Front::start(cluster.add_worker());
    let client = &cluster.client.process;
    let joined = client.node.calls.start(Mode::Gather, 1, Arc::default());
    let wanted = cluster.wanted(host_id(0), front.port, 0, 0);
    cluster.client.gateway.join(&cluster.job, "a test", wanted, joined.call_id, Duration::from_secs(30));
    until(|| joined.is_done(0));
    let host = cluster.job.host(host_id(0)).unwrap();
    until(|| host.session.is_up() && host.session.has_heartbeat());
    front.close();
    // Each connection has ended at some time: at the first retry, both are missing.
    let mut expected = None;
    for retry in 1..=4 {
        until(|| host.retries() == retry && !host.is_opening());
        for _ in 0..100 {
            client.send(host_id(0), CallId::NONE, &[b"waits"]);
        }
        settle(client);
        let count = front.count();
        assert_eq!((count, host.retries()), (expected.unwrap_or(count.clamp(1, 2)), retry));
        expected = Some(count + 2);
        // Longer than this pause, and shorter than the next one.
        let end = client.node.poller.now() + PAUSE * 2u32.pow(retry as u32) + Duration::from_millis(1);
        client.node.poller.wait(&client.node.poller.waiter(), Some(end), || false);
    }
}
