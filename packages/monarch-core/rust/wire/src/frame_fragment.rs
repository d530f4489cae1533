//! A long run of frames to a process of another host, in fragments.
//!
//! An agent that forwards fragments holds little of the run, forwards the first fragment before it has the last, and interleaves the
//! fragments of other senders. The receiving process joins them. A fragment is `u32 bytes that follow in later fragments`, and bytes.

use crate::cursor::{Cursor, DecodeError};
use crate::frame::{FRAME_FRAGMENT, begin, finish};

/// Bytes of a fragment.
pub const SIZE: usize = 512 << 10;
/// Longest run that is sent whole. Fragments cost system calls, so only longer runs are cut.
pub const WHOLE: usize = 4 * SIZE;

/// Cuts a run into fragments and calls `each` with every one of them as a frame. A short run is passed on unchanged.
pub fn cut(run: &[&[u8]], mut each: impl FnMut(&[&[u8]])) {
    let mut left: usize = run.iter().map(|p| p.len()).sum();
    if left <= WHOLE {
        return each(run);
    }
    let mut slices = run.iter().copied();
    let mut slice: &[u8] = &[];
    while left > 0 {
        let size = left.min(SIZE);
        left -= size;
        let mut head = Vec::with_capacity(9);
        let at = begin(&mut head, FRAME_FRAGMENT);
        head.extend_from_slice(&(left as u32).to_le_bytes());
        finish(&mut head, at, size);
        let mut out: Vec<&[u8]> = vec![&head];
        let mut missing = size;
        while missing > 0 {
            if slice.is_empty() {
                let Some(next) = slices.next() else { return };
                slice = next;
                continue;
            }
            let (now, later) = slice.split_at(missing.min(slice.len()));
            out.push(now);
            missing -= now.len();
            slice = later;
        }
        each(&out);
    }
}

/// A run that has not arrived completely.
#[derive(Default)]
pub struct Gathering {
    run: Vec<u8>,
    left: usize,
}

impl Gathering {
    /// Adds the body of the next fragment; returns the whole run after the last one. `fresh` is called with memory that is about to be
    /// filled.
    pub fn take(&mut self, body: &[u8], fresh: impl FnOnce(&mut Vec<u8>)) -> Result<Option<Vec<u8>>, DecodeError> {
        let mut c = Cursor::new(body);
        let left = c.u32()? as usize;
        let fragment = c.take(c.remaining())?;
        if self.run.is_empty() {
            self.run.try_reserve_exact(left + fragment.len()).map_err(|_| DecodeError::Number)?;
            fresh(&mut self.run);
        } else if self.left != left + fragment.len() {
            *self = Gathering::default();
            return Err(DecodeError::Number);
        }
        self.run.extend_from_slice(fragment);
        self.left = left;
        Ok((left == 0).then(|| std::mem::take(&mut self.run)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routed::Frames;

    fn fragments(run: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        cut(run, |p| out.push(p.concat()));
        out
    }

    #[test]
    fn short_run_stays_unchanged() {
        let half = vec![1; WHOLE / 2];
        assert_eq!(fragments(&[&half, &half]), [vec![1; WHOLE]]);
    }

    #[test]
    fn long_run_arrives_whole() {
        let bytes: Vec<u8> = (0..5 * SIZE + 7).map(|i| i as u8).collect();
        for at in [0, 1, SIZE - 1, SIZE, 3 * SIZE, bytes.len()] {
            let (a, b) = bytes.split_at(at);
            let cut = fragments(&[a, &[], b]);
            assert_eq!(cut.len(), 6);
            let mut gathering = Gathering::default();
            // Twice, because the state must be empty after the first run.
            for _ in 0..2 {
                let mut whole = None;
                for frame in &cut {
                    assert!(whole.is_none());
                    let body = Frames::of(frame).next().unwrap();
                    assert_eq!(body[0], FRAME_FRAGMENT);
                    whole = gathering.take(&body[1..], |_| {}).unwrap();
                }
                assert_eq!(whole.as_ref(), Some(&bytes));
            }
        }
    }

    #[test]
    fn fragments_of_two_runs_are_refused() {
        let mut gathering = Gathering::default();
        let body = |left: u32, n: usize| [&left.to_le_bytes()[..], &vec![0; n]].concat();
        assert_eq!(gathering.take(&body(10, 4), |_| {}), Ok(None));
        assert_eq!(gathering.take(&body(10, 4), |_| {}), Err(DecodeError::Number));
        assert_eq!(gathering.take(&body(0, 4), |_| {}), Ok(Some(vec![0; 4])));
        assert_eq!(gathering.take(&[0, 0], |_| {}), Err(DecodeError::Truncated));
    }
}
