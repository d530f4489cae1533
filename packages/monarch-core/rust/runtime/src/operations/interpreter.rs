//! The interpreter as operations use it. The bridge implements it for Python.

use std::os::fd::RawFd;

/// The reason for which a wait in a simulated world cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hopeless {
    /// Every thread waits, and nothing can happen any more.
    Deadlock,
    /// The simulated process of the thread was killed.
    Killed,
}

/// The interpreter, whose lock the calling thread holds.
pub trait Interpreter {
    /// An exception of the interpreter.
    type Error;

    /// Runs `f` without the lock, so that other threads of the interpreter run.
    fn release<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T;

    /// Runs the handlers of the signals that have arrived. Returns the exception of a handler.
    fn check_signals(&self) -> Result<(), Self::Error>;

    /// Sets the descriptor to which the interpreter writes when a signal arrives; -1: none. Returns the previous one.
    fn set_wakeup_fd(&self, fd: RawFd) -> Result<RawFd, Self::Error>;

    /// True if this thread runs an event loop, which must not be blocked.
    fn runs_loop(&self) -> Result<bool, Self::Error>;

    /// The exception for a wait that cannot go on.
    fn hopeless(&self, why: Hopeless) -> Self::Error;
}

#[cfg(test)]
pub(crate) mod model {
    //! An interpreter for tests.

    use std::cell::RefCell;
    use std::os::fd::RawFd;

    use super::{Hopeless, Interpreter};

    /// An exception of the model: that of a signal handler, or of a wait that cannot go on.
    #[derive(PartialEq, Eq, Debug)]
    pub enum Raised {
        Handler,
        Hopeless(Hopeless),
    }

    /// A signal handler of the model.
    pub type Handler = Box<dyn FnMut() -> Result<(), Raised>>;

    /// An interpreter that records how it is called.
    #[derive(Default)]
    pub struct Model {
        pub wakeup_fd: RefCell<RawFd>,
        pub runs_loop: bool,
        /// Runs in each check for signals; its error is that of a handler.
        pub handler: RefCell<Option<Handler>>,
        /// Runs before each release of the lock.
        pub released: RefCell<Option<Box<dyn FnMut()>>>,
    }

    impl Interpreter for Model {
        type Error = Raised;

        fn release<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
            if let Some(released) = &mut *self.released.borrow_mut() {
                released();
            }
            f()
        }

        fn check_signals(&self) -> Result<(), Raised> {
            self.handler.borrow_mut().as_mut().map_or(Ok(()), |handler| handler())
        }

        fn set_wakeup_fd(&self, fd: RawFd) -> Result<RawFd, Raised> {
            Ok(self.wakeup_fd.replace(fd))
        }

        fn runs_loop(&self) -> Result<bool, Raised> {
            Ok(self.runs_loop)
        }

        fn hopeless(&self, why: Hopeless) -> Raised {
            Raised::Hopeless(why)
        }
    }
}
