//! Versions, compared before anything else is said.
//!
//! `magic, u32 version, u8 length, release`, little-endian. It stays as it is in all versions, so that two builds that must
//! not talk can say so.

use std::fmt;

use crate::trust::refused::Refused;

/// The first byte is neither text nor TLS.
pub const MAGIC: [u8; 8] = *b"\xe5monarch";
/// Magic, version and the release's length.
pub const FIXED: usize = MAGIC.len() + 5;

/// A version of the protocol with the release that speaks it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    pub version: u32,
    pub name: String,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (protocol {})", self.name, self.version)
    }
}

impl Release {
    pub fn ours() -> Release {
        Release { version: wire::VERSION, name: env!("CARGO_PKG_VERSION").into() }
    }

    /// Whether we can talk to it.
    pub fn check(self) -> Result<(), Refused> {
        let ours = Release::ours();
        if self.version == ours.version { Ok(()) } else { Err(Refused::Version { ours, theirs: self }) }
    }
}

pub fn put(out: &mut Vec<u8>) {
    let ours = Release::ours();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&ours.version.to_le_bytes());
    out.push(ours.name.len() as u8);
    out.extend_from_slice(ours.name.as_bytes());
}

/// Whether these first bytes can be those of a preface.
pub fn begins(bytes: &[u8]) -> Result<(), Refused> {
    let n = bytes.len().min(MAGIC.len());
    if bytes[..n] == MAGIC[..n] {
        return Ok(());
    }
    Err(Refused::protocol(match bytes {
        [0x14..=0x17, ..] => "the other end speaks TLS",
        [b' '..=b'~', ..] => "the other end sent text",
        _ => "the other end is not a monarch process",
    }))
}

/// How long the whole preface is, by its fixed part.
pub fn len(fixed: &[u8; FIXED]) -> usize {
    FIXED + fixed[FIXED - 1] as usize
}

/// A whole preface.
pub fn parse(bytes: &[u8]) -> Result<Release, Refused> {
    begins(bytes)?;
    let (fixed, name) = bytes.split_first_chunk::<FIXED>().ok_or_else(|| Refused::protocol("malformed preface"))?;
    let [.., a, b, c, d, _] = *fixed;
    // It goes to logs and terminals.
    let name = name.iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { '?' }).collect();
    Ok(Release { version: u32::from_le_bytes([a, b, c, d]), name })
}
