//! Notices along trees that are no casts: ended processes, and workers that have joined.

use std::sync::Arc;

use crate::cursor::{Cursor, DecodeError, put_block, put_var};
use crate::group::Span;
use crate::ids::ProcUid;

/// A host or a proc that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    pub uid: ProcUid,
    /// The whole host has ended, with its procs.
    pub host: bool,
    /// The exit reason: an encoded `ProcEnd`.
    pub why: Arc<[u8]>,
}

/// The hosts of a span, and the ancestors of the first of them in the tree, nearest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roster {
    /// The version of the root's list of hosts.
    pub version: u32,
    pub start: u32,
    pub hosts: Vec<ProcUid>,
    pub ancestors: Vec<ProcUid>,
}

/// Reports of ends, up or down a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The hosts to which the receiver forwards the report; empty: it goes up.
    pub span: Span,
    /// The report contains all known ends, because a host of the tree has ended and may not have forwarded earlier reports.
    pub whole: bool,
    /// The hosts, if the receiver does not have them.
    pub roster: Option<Arc<Roster>>,
    pub ended: Vec<Ended>,
}

/// Workers that the receiver is to join on behalf of the client, each with its place in the list of workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Joining {
    pub workers: Vec<(u32, String)>,
}

/// The outcome for each worker: joined, or the reason of the failure.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Joined {
    pub joined: Vec<u32>,
    pub failed: Vec<(u32, String)>,
}

fn text(c: &mut Cursor<'_>) -> Result<String, DecodeError> {
    Ok(std::str::from_utf8(c.block()?).map_err(|_| DecodeError::Text)?.to_owned())
}

fn put_uids(out: &mut Vec<u8>, uids: &[ProcUid]) {
    put_var(out, uids.len() as u64);
    uids.iter().for_each(|u| out.extend_from_slice(&u.0.to_le_bytes()));
}

fn uids(c: &mut Cursor<'_>) -> Result<Vec<ProcUid>, DecodeError> {
    let n = c.count(8)?;
    (0..n).map(|_| Ok(ProcUid(c.u64()?))).collect()
}

fn put_indexed_texts(out: &mut Vec<u8>, indexed_texts: &[(u32, String)]) {
    put_var(out, indexed_texts.len() as u64);
    for (place, text) in indexed_texts {
        put_var(out, (*place).into());
        put_block(out, text.as_bytes());
    }
}

fn indexed_texts(c: &mut Cursor<'_>) -> Result<Vec<(u32, String)>, DecodeError> {
    let n = c.count(2)?;
    (0..n).map(|_| Ok((c.var32()?, text(c)?))).collect()
}

impl Roster {
    fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let roster = Roster { version: c.var32()?, start: c.var32()?, hosts: uids(c)?, ancestors: uids(c)? };
        roster.start.checked_add(roster.hosts.len() as u32).ok_or(DecodeError::Number)?;
        Ok(roster)
    }
}

impl Notice {
    pub fn put(&self, out: &mut Vec<u8>) {
        self.span.put(out);
        out.push(u8::from(self.whole) | u8::from(self.roster.is_some()) << 1);
        if let Some(r) = &self.roster {
            put_var(out, r.version.into());
            put_var(out, r.start.into());
            put_uids(out, &r.hosts);
            put_uids(out, &r.ancestors);
        }
        put_var(out, self.ended.len() as u64);
        for e in &self.ended {
            out.extend_from_slice(&e.uid.0.to_le_bytes());
            out.push(e.host.into());
            put_block(out, &e.why);
        }
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let (span, tag) = (Span::read(c)?, c.u8()?);
        if tag > 3 {
            return Err(DecodeError::Tag(tag));
        }
        let roster = if tag & 2 == 0 { None } else { Some(Arc::new(Roster::read(c)?)) };
        let n = c.count(10)?;
        let ended = (0..n).map(|_| {
            let (uid, host) = (ProcUid(c.u64()?), c.u8()?);
            if host > 1 {
                return Err(DecodeError::Tag(host));
            }
            Ok(Ended { uid, host: host == 1, why: c.block()?.into() })
        });
        Ok(Notice { span, whole: tag & 1 != 0, roster, ended: ended.collect::<Result<_, _>>()? })
    }
}

impl Joining {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_indexed_texts(out, &self.workers);
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Joining { workers: indexed_texts(c)? })
    }
}

impl Joined {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_var(out, self.joined.len() as u64);
        self.joined.iter().for_each(|w| put_var(out, (*w).into()));
        put_indexed_texts(out, &self.failed);
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let n = c.count(1)?;
        let joined = (0..n).map(|_| c.var32()).collect::<Result<_, _>>()?;
        Ok(Joined { joined, failed: indexed_texts(c)? })
    }
}
