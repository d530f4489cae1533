//! `monarch._core._native.protocol`: the numbers of messages, answers and requests that both sides use.

#[pyo3::pymodule(submodule)]
pub mod protocol {
    use wire::Status;

    // The flags of a message.
    #[pymodule_export]
    const STOP: u8 = wire::frame::STOP;
    #[pymodule_export]
    const EXPLICIT_PORT: u8 = wire::frame::EXPLICIT_PORT;
    #[pymodule_export]
    const TRACED: u8 = wire::frame::TRACED;

    // The first byte of the event for an actor whose endpoint is to be cancelled at a deadline; the number of its message follows.
    #[pymodule_export]
    const EXPIRED: u8 = runtime::messages::limits::EXPIRED;

    // The conditions under which a call is done.
    #[pymodule_export]
    pub const NO_ANSWER: i32 = -1;
    #[pymodule_export]
    pub const FIRST_ERROR: i32 = 0;
    #[pymodule_export]
    pub const GATHER: i32 = 1;
    #[pymodule_export]
    pub const STREAM: i32 = 2;
    /// As `FIRST_ERROR`, for a call whose user wants the answer of one rank.
    #[pymodule_export]
    pub const ONLY_ANSWER: i32 = 3;

    // The status of an answer: value, error, or failure.
    #[pymodule_export]
    const OK: u8 = Status::Ok as u8;
    #[pymodule_export]
    const ERROR: u8 = Status::Error as u8;
    #[pymodule_export]
    const FAILED: u8 = Status::Failed as u8;
    #[pymodule_export]
    const PROC_ENDED: u8 = Status::ProcEnded as u8;
    #[pymodule_export]
    const CLOSED: u8 = Status::Closed as u8;
    #[pymodule_export]
    const UNDELIVERED: u8 = Status::Undelivered as u8;
    #[pymodule_export]
    const DEADLINE: u8 = Status::Expired as u8;

    // A request that only the native side sends.
    #[pymodule_export]
    const UNDELIVERABLE: u16 = runtime::system::UNDELIVERABLE;
}
