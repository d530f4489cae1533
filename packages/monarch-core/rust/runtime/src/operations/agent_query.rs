//! The inspection of a job from a process that is no part of the job: one request to an agent over its control socket, and the answer.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use wire::frame::PREFIX;
use wire::{Control, Frame};

use crate::peers::external_process::other_version;

/// The largest answer: a frame with a greater length is malformed.
const LONGEST: usize = 1 << 30;
/// The number of the request on its connection, which has no other request.
const REQUEST: u64 = 1;

/// Sends an inspection request over a connection to an agent, and reads frames until the answer; the reason if there is none in time.
pub fn inspect(agent: OwnedFd, what: u8, timeout: Duration) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + timeout;
    let mut stream = UnixStream::from(agent);
    let question = Frame::Control(Control::Inspect { id: REQUEST, what }).encode();
    stream.write_all(&question).map_err(|e| format!("it does not listen: {e}"))?;
    loop {
        let head: [u8; 4] = read(&mut stream, 4, deadline)?.try_into().unwrap_or_default();
        let len = u32::from_le_bytes(head) as usize;
        if !(PREFIX - 4..LONGEST).contains(&len) {
            return Err(format!("its answer has a frame of {len} bytes, which is too long"));
        }
        match Frame::decode(&read(&mut stream, len, deadline)?) {
            Ok(Frame::Control(Control::Inspected { id: REQUEST, body })) => return Ok(body),
            Ok(other) => other_version(&other).map_or(Ok(()), Err)?,
            Err(e) => return Err(format!("its answer is malformed: {e}")),
        }
    }
}

/// Reads `len` bytes before the deadline.
fn read(stream: &mut UnixStream, len: usize, deadline: Instant) -> Result<Vec<u8>, String> {
    let (mut bytes, mut at) = (vec![0; len], 0);
    while at < len {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it does not answer in time".to_owned());
        }
        stream.set_read_timeout(Some(left)).map_err(|e| e.to_string())?;
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return Err("it closed the connection: it runs another version, or has just ended".to_owned()),
            Ok(n) => at += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(e) => return Err(format!("it cannot be read from: {e}")),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// The outcome of a query whose agent sends these bytes, and ends the connection.
    fn answer_to(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        inspect(ours.into(), 0, LONG)
    }

    fn answer(body: &[u8]) -> Vec<u8> {
        Frame::Control(Control::Inspected { id: REQUEST, body: body.to_vec() }).encode()
    }

    #[test]
    fn frames_before_the_answer_are_ignored() {
        let bytes = [Frame::Control(Control::Pong { seq: 1 }).encode(), answer(b"state")].concat();
        assert_eq!(answer_to(&bytes), Ok(b"state".to_vec()));
    }

    #[test]
    fn cut_off_answer_is_an_error() {
        let bytes = answer(b"state");
        let why = answer_to(&bytes[..bytes.len() - 1]).unwrap_err();
        assert!(why.starts_with("it closed the connection"), "{why}");
    }

    #[test]
    fn malformed_answers_are_errors() {
        let why = answer_to(&(LONGEST as u32).to_le_bytes()).unwrap_err();
        assert!(why.contains("too long"), "{why}");
        let why = answer_to(&[&3_u32.to_le_bytes()[..], &[250, 1, 2]].concat()).unwrap_err();
        assert!(why.contains("malformed"), "{why}");
    }

    #[test]
    fn silent_agent_is_waited_for_until_the_deadline() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(inspect(ours.into(), 0, Duration::ZERO), Err("it does not answer in time".to_owned()));
    }
}
