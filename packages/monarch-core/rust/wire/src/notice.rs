//! Lists of workers along the join tree: those to join, and the outcome for each of them.

use crate::cursor::{Cursor, DecodeError, put_block, put_var};

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
