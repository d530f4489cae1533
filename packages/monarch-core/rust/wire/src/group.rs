//! The receivers of a cast: hosts in an order, and on each host the procs. All procs have the same mailbox.
//!
//! There are three kinds of numbers. A *position* names a host within the group. An *index* names a target in the order of hosts and their
//! procs. A *rank* names a target within the addressed shape. Ranks may be in any order. Positions and indices are contiguous wherever a
//! tree divides them, so answers are reduced by index, and only the caller and the receiving procs know ranks.

use serde::{Deserialize, Serialize};

use crate::cursor::{Cursor, DecodeError, put_var};
use crate::ids::{MailboxId, ProcUid};

/// The id of a group: its source, and a number from the source's counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct GroupId {
    pub source: ProcUid,
    pub number: u32,
}

impl GroupId {
    pub fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.source.0.to_le_bytes());
        put_var(out, self.number.into());
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(GroupId { source: ProcUid(c.u64()?), number: c.var32()? })
    }
}

/// The positions from `start` up to, but not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(start: u32, end: u32) -> Self {
        Span { start, end }
    }

    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn contains(self, position: u32) -> bool {
        (self.start..self.end).contains(&position)
    }

    pub fn covers(self, other: Span) -> bool {
        other.is_empty() || self.start <= other.start && other.end <= self.end
    }

    pub fn put(self, out: &mut Vec<u8>) {
        put_var(out, self.start.into());
        put_var(out, self.len().into());
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let (start, len) = (c.var32()?, c.var32()?);
        Ok(Span { start, end: start.checked_add(len).ok_or(DecodeError::Number)? })
    }
}

/// The section of a group that a node knows: the hosts for whose answers it may be responsible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSlice {
    pub mailbox: MailboxId,
    /// The host of the source. The group ends with it.
    pub root: ProcUid,
    /// The position of the first host in this slice.
    pub start: u32,
    pub hosts: Vec<ProcUid>,
    /// The index of the first target of each host; one more entry is the end of the last host.
    pub firsts: Vec<u32>,
    pub procs: Vec<ProcUid>,
    pub ranks: Vec<u32>,
}

impl GroupSlice {
    /// Makes a whole group from its hosts, each with its procs and their ranks.
    pub fn whole(mailbox: MailboxId, root: ProcUid, hosts: impl IntoIterator<Item = (ProcUid, Vec<(ProcUid, u32)>)>) -> Self {
        let mut all = GroupSlice { mailbox, root, start: 0, hosts: vec![], firsts: vec![0], procs: vec![], ranks: vec![] };
        for (host, procs) in hosts {
            all.hosts.push(host);
            for (uid, rank) in procs {
                all.procs.push(uid);
                all.ranks.push(rank);
            }
            all.firsts.push(all.procs.len() as u32);
        }
        all
    }

    pub fn span(&self) -> Span {
        Span::new(self.start, self.start + self.hosts.len() as u32)
    }

    /// The host at a position of the span.
    pub fn host(&self, position: u32) -> Option<ProcUid> {
        self.hosts.get(position.checked_sub(self.start)? as usize).copied()
    }

    /// The index of the first target at a position, which may be the end of the span.
    pub fn first(&self, position: u32) -> u32 {
        let at = position.saturating_sub(self.start) as usize;
        self.firsts.get(at.min(self.hosts.len())).copied().unwrap_or(0)
    }

    /// The number of targets in a part of the span.
    pub fn targets(&self, span: Span) -> u32 {
        self.first(span.end).saturating_sub(self.first(span.start))
    }

    /// The targets of one host, as indices.
    pub fn indices(&self, position: u32) -> std::ops::Range<u32> {
        self.first(position)..self.first(position + 1)
    }

    /// The proc and the rank of a target in the span.
    pub fn target(&self, index: u32) -> Option<(ProcUid, u32)> {
        let at = index.checked_sub(*self.firsts.first()?)? as usize;
        Some((*self.procs.get(at)?, *self.ranks.get(at)?))
    }

    /// The part of the slice for a node that is responsible for a smaller span.
    pub fn part(&self, span: Span) -> GroupSlice {
        let at = |position: u32| (position.clamp(self.start, self.span().end) - self.start) as usize;
        let (from, to) = (at(span.start), at(span.end));
        let base = self.firsts[0];
        let (first, last) = ((self.firsts[from] - base) as usize, (self.firsts[to] - base) as usize);
        GroupSlice {
            mailbox: self.mailbox,
            root: self.root,
            start: self.start + from as u32,
            hosts: self.hosts[from..to].to_vec(),
            firsts: self.firsts[from..=to].to_vec(),
            procs: self.procs[first..last].to_vec(),
            ranks: self.ranks[first..last].to_vec(),
        }
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.mailbox.0.to_le_bytes());
        out.extend_from_slice(&self.root.0.to_le_bytes());
        put_var(out, self.start.into());
        put_var(out, self.firsts[0].into());
        put_var(out, self.hosts.len() as u64);
        self.hosts.iter().for_each(|h| out.extend_from_slice(&h.0.to_le_bytes()));
        let counts: Vec<u32> = self.firsts.windows(2).map(|w| w[1] - w[0]).collect();
        for run in counts.chunk_by(|a, b| a == b) {
            put_var(out, run.len() as u64);
            put_var(out, run[0].into());
        }
        self.procs.iter().for_each(|p| out.extend_from_slice(&p.0.to_le_bytes()));
        for run in self.ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            put_var(out, run.len() as u64);
            put_var(out, run[0].into());
        }
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let (mailbox, root) = (MailboxId(c.u64()?), ProcUid(c.u64()?));
        let (start, mut first) = (c.var32()?, c.var32()?);
        let n = c.count(8)?;
        start.checked_add(n as u32).ok_or(DecodeError::Number)?;
        let hosts = (0..n).map(|_| Ok(ProcUid(c.u64()?))).collect::<Result<Vec<_>, _>>()?;
        let (mut firsts, mut targets) = (vec![first], 0);
        while firsts.len() <= n {
            let (run, count) = (c.var32()? as usize, c.var32()?);
            if run == 0 || run > n + 1 - firsts.len() {
                return Err(DecodeError::Number);
            }
            for _ in 0..run {
                first = first.checked_add(count).ok_or(DecodeError::Number)?;
                targets += count as usize;
                firsts.push(first);
            }
        }
        if targets > c.remaining() / 8 {
            return Err(DecodeError::Truncated);
        }
        let procs = (0..targets).map(|_| Ok(ProcUid(c.u64()?))).collect::<Result<Vec<_>, _>>()?;
        let mut ranks = Vec::with_capacity(targets);
        while ranks.len() < targets {
            let (run, from) = (c.var32()? as usize, c.var32()?);
            if run == 0 || run > targets - ranks.len() {
                return Err(DecodeError::Number);
            }
            let to = from.checked_add(run as u32 - 1).ok_or(DecodeError::Number)?;
            ranks.extend(from..=to);
        }
        Ok(GroupSlice { mailbox, root, start, hosts, firsts, procs, ranks })
    }
}
