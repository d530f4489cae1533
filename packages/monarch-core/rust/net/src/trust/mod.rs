//! Temporary.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::stream::Stream;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JobId(pub u64);
pub enum Policy { Insecure }
pub struct DialTrust { pub job: JobId }
impl DialTrust {
    pub fn new_client(job: JobId, _policy: Policy) -> io::Result<Arc<DialTrust>> { Ok(Arc::new(DialTrust { job })) }
}
pub struct HostTrust;
impl HostTrust {
    pub fn new(_policy: Policy) -> io::Result<Arc<HostTrust>> { Ok(Arc::new(HostTrust)) }
    pub fn dial_trust(&self, job: JobId) -> Option<Arc<DialTrust>> { Some(Arc::new(DialTrust { job })) }
    pub fn forget(&self, _job: JobId) {}
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind { Join, Channel }
pub struct Target { pub name: String, pub host: u64, pub kind: Kind }
pub struct Opened { pub stream: Stream, pub job: JobId, pub hello: Vec<u8>, pub kind: Kind, pub peer: String }
pub enum Progress { Pending, Done(Opened) }
#[derive(Debug, Clone)]
pub struct Refused(pub String);
impl std::fmt::Display for Refused { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.0) } }
pub struct Opening { stream: Option<Stream>, fd: RawFd, out: Vec<u8>, input: Vec<u8>, dial: bool, job: JobId, kind: Kind, peer: String }
impl Opening {
    pub fn dial(fd: OwnedFd, trust: &Arc<DialTrust>, target: Target, hello: Vec<u8>) -> io::Result<Opening> {
        let mut out = trust.job.0.to_le_bytes().to_vec();
        out.push(target.kind as u8);
        out.extend_from_slice(&(hello.len() as u32).to_le_bytes());
        out.extend_from_slice(&hello);
        Ok(Opening { fd: fd.as_raw_fd(), stream: Some(Stream::plain(fd)), out, input: vec![], dial: true, job: trust.job, kind: target.kind, peer: target.name })
    }
    pub fn accept(fd: OwnedFd, _trust: &Arc<HostTrust>, peer: String) -> io::Result<Opening> {
        Ok(Opening { fd: fd.as_raw_fd(), stream: Some(Stream::plain(fd)), out: vec![], input: vec![], dial: false, job: JobId(0), kind: Kind::Join, peer })
    }
    pub fn fd(&self) -> RawFd { self.fd }
    pub fn wants_write(&self) -> bool { !self.out.is_empty() }
    pub fn drive(&mut self) -> Result<Progress, Refused> {
        let Some(stream) = self.stream.as_mut() else { return Err(Refused("over".into())) };
        let bad = |e: io::Error| Refused(e.to_string());
        if self.dial {
            while !self.out.is_empty() {
                match stream.write(&[&self.out]) {
                    Ok(n) => drop(self.out.drain(..n)),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::Pending),
                    Err(e) => return Err(bad(e)),
                }
            }
            return Ok(Progress::Done(Opened { stream: self.stream.take().unwrap(), job: self.job, hello: vec![], kind: self.kind, peer: self.peer.clone() }));
        }
        loop {
            if self.input.len() >= 13 {
                let n = u32::from_le_bytes(self.input[9..13].try_into().unwrap()) as usize;
                if self.input.len() == 13 + n {
                    let job = JobId(u64::from_le_bytes(self.input[..8].try_into().unwrap()));
                    let kind = if self.input[8] == 0 { Kind::Join } else { Kind::Channel };
                    return Ok(Progress::Done(Opened { stream: self.stream.take().unwrap(), job, hello: self.input[13..].to_vec(), kind, peer: self.peer.clone() }));
                }
            }
            let want = if self.input.len() < 13 { 13 - self.input.len() } else { 13 + u32::from_le_bytes(self.input[9..13].try_into().unwrap()) as usize - self.input.len() };
            let mut b = vec![0u8; want];
            match crate::sys::read(self.fd, &mut b) {
                Ok(0) => return Err(Refused("closed".into())),
                Ok(n) => self.input.extend_from_slice(&b[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::Pending),
                Err(e) => return Err(bad(e)),
            }
        }
    }
}
