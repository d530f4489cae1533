//! Names and texts of events.
//!
//! A name (of a mesh, a method, a span) is stored once, for ever, and found by its hash without a lock. A text (a log line, the fields of a
//! user event) is stored for one event and overwritten like events; its position and its hash show a reader whether it is intact. A record
//! refers to either with one word: 0 for no text, the number of a name, or `TEXT` and a position. A name without room is stored as a text.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::layout::{H_NAMES, H_TEXT, INDEX, NAMES, TEXTS, Words, index_at, names_at, texts_at};

/// The mark of a reference to a text.
const TEXT: u64 = 1 << 63;
/// Longer texts are cut.
const LONGEST: usize = 4096;
/// Index entries that are tried before a name counts as one without room.
const PROBES: usize = 16;
/// The number of words before a text: its position, then length and hash.
const HEAD: usize = 2;

/// Multiplies and folds word by word, so that every bit of a name changes the low bits too.
fn hash(bytes: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |h: u64, w: u64| {
        let product = u128::from(h ^ w) * u128::from(FACTOR);
        product as u64 ^ (product >> 64) as u64
    };
    let h = bytes.chunks(8).fold(FACTOR ^ bytes.len() as u64, |h, chunk| fold(h, word(chunk)));
    (h ^ (h >> 32)) as u32
}

/// Up to eight bytes as a word. It avoids a copy of variable length, which would be a function call.
#[inline]
fn word(chunk: &[u8]) -> u64 {
    let n = chunk.len();
    if let Ok(whole) = chunk.try_into() {
        u64::from_le_bytes(whole)
    } else if let (Some(first), Some(last)) = (chunk.first_chunk::<4>(), chunk.last_chunk::<4>()) {
        // Both halves overlap in equal bytes.
        u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (n - 4))
    } else if let (Some(first), Some(last)) = (chunk.first(), chunk.last()) {
        u64::from(*first) | u64::from(chunk[n / 2]) << (8 * (n / 2)) | u64::from(*last) << (8 * (n - 1))
    } else {
        0
    }
}

/// The text, cut to `LONGEST` bytes.
fn cut(bytes: &[u8]) -> &[u8] {
    if bytes.len() <= LONGEST {
        return bytes;
    }
    let mut end = LONGEST;
    // The cut is not inside a character.
    while end > LONGEST - 4 && bytes[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &bytes[..end]
}

/// The word that refers to a name.
pub fn name(words: &Words, bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        return 0;
    }
    let bytes = cut(bytes);
    let h = hash(bytes);
    let entry = |number: u64| u64::from(h) << 32 | number;
    let mut made = 0;
    for i in 0..PROBES {
        let place = &words[index_at() + (h as usize + i) % INDEX];
        let mut found = place.load(Acquire);
        if found == 0 {
            if made == 0 {
                match keep(words, bytes) {
                    Some(number) => made = number,
                    None => break,
                }
            }
            // If two threads add a name at once, the second one finds the first entry, and its own copy stays unused.
            match place.compare_exchange(0, entry(made), Release, Acquire) {
                Ok(_) => return made,
                Err(theirs) => found = theirs,
            }
        }
        let number = found & 0xffff_ffff;
        if found >> 32 == u64::from(h) && is_name(words, number, bytes) {
            return number;
        }
    }
    text(words, bytes)
}

/// Stores a name. Its number is the index of its first word plus one.
fn keep(words: &Words, bytes: &[u8]) -> Option<u64> {
    let need = 1 + bytes.len().div_ceil(8);
    let head = &words[H_NAMES];
    if head.load(Relaxed) as usize + need > NAMES / 8 {
        return None;
    }
    let at = head.fetch_add(need as u64, Relaxed) as usize;
    if at + need > NAMES / 8 {
        return None;
    }
    let place = &words[names_at() + at..][..need];
    place[0].store(bytes.len() as u64, Relaxed);
    for (to, chunk) in place[1..].iter().zip(bytes.chunks(8)) {
        to.store(word(chunk), Relaxed);
    }
    Some(at as u64 + 1)
}

fn is_name(words: &Words, number: u64, bytes: &[u8]) -> bool {
    let place = &words[names_at() + (number as usize - 1)..];
    place[0].load(Relaxed) == bytes.len() as u64 && bytes.chunks(8).zip(&place[1..]).all(|(chunk, have)| have.load(Relaxed) == word(chunk))
}

/// Stores a text and returns the word that refers to it.
pub fn text(words: &Words, bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        return 0;
    }
    let bytes = cut(bytes);
    let at = words[H_TEXT].fetch_add((HEAD + bytes.len().div_ceil(8)) as u64, Relaxed);
    let place = |i: usize| &words[texts_at() + (at as usize + i) % (TEXTS / 8)];
    place(0).store(at, Relaxed);
    place(1).store((bytes.len() as u64) << 32 | u64::from(hash(bytes)), Relaxed);
    for (i, chunk) in bytes.chunks(8).enumerate() {
        place(HEAD + i).store(word(chunk), Relaxed);
    }
    TEXT | at
}

/// The text of a reference; `None` if it has been overwritten.
pub fn read(words: &Words, reference: u64) -> Option<String> {
    if reference == 0 {
        return Some(String::new());
    }
    if reference & TEXT == 0 { read_name(words, reference as usize) } else { read_text(words, reference & !TEXT) }
}

fn read_name(words: &Words, number: usize) -> Option<String> {
    let place = words[names_at()..texts_at()].get(number - 1..)?;
    let len = usize::try_from(place.first()?.load(Acquire)).ok().filter(|len| *len <= LONGEST)?;
    let bytes = collect(len, |i| place.get(1 + i).map(|w| w.load(Relaxed)))?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn read_text(words: &Words, at: u64) -> Option<String> {
    let place = |i: usize| words[texts_at() + (at as usize + i) % (TEXTS / 8)].load(Relaxed);
    let head = place(1);
    let len = (head >> 32) as usize;
    if place(0) != at || len > LONGEST {
        return None;
    }
    let bytes = collect(len, |i| Some(place(HEAD + i)))?;
    // The hash also detects a writer that was stopped in the middle and continued after the ring went around.
    let whole = hash(&bytes) == head as u32 && words[H_TEXT].load(Acquire).wrapping_sub(at) <= (TEXTS / 8) as u64;
    whole.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The bytes of a run of words.
fn collect(len: usize, word: impl Fn(usize) -> Option<u64>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len + 8);
    for i in 0..len.div_ceil(8) {
        bytes.extend_from_slice(&word(i)?.to_le_bytes());
    }
    bytes.truncate(len);
    Some(bytes)
}
