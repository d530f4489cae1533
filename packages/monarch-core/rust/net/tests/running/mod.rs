//! A poller whose I/O thread runs until it is dropped.

use std::sync::Arc;
use std::thread::ThreadId;

use net::Poller;

pub struct Running(pub Arc<Poller>, Option<std::thread::JoinHandle<()>>);

impl Running {
    pub fn new() -> Self {
        let poller = Poller::new().unwrap();
        let p = poller.clone();
        Running(poller, Some(std::thread::spawn(move || p.run())))
    }

    /// The id of the I/O thread.
    #[allow(dead_code)]
    pub fn io(&self) -> ThreadId {
        self.1.as_ref().unwrap().thread().id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop();
        self.1.take().unwrap().join().unwrap();
    }
}
