//! Versions, compared before any other message.
//!
//! `magic, u32 version, u8 length, release`, little-endian. The format is the same in all versions, so that two incompatible builds can
//! report the mismatch. The release is text, `0.1.0+python3.11`; a build that does not know a part of it treats the text as a name.
//!
//! Processes exchange pickled code, which only the same minor version of Python can run. They also exchange the runtime's own messages in
//! Python, which change with a minor release. So both are compared, as well as the version of the protocol.

use std::fmt;
use std::sync::OnceLock;

use crate::trust::refused::Refused;

/// The first bytes of a preface. The first byte is neither text nor TLS.
pub const MAGIC: [u8; 8] = *b"\xe5monarch";
/// The length of the fixed part: magic, version, and length of the release.
pub const FIXED: usize = MAGIC.len() + 5;

/// The separator between the release and the minor version of Python.
const ON_PYTHON: &str = "+python";

/// The minor version of Python in this process.
static PYTHON: OnceLock<String> = OnceLock::new();

/// Sets the minor version of Python that this process runs, `3.11`. Without it, only peers without Python are accepted.
pub fn set_python(minor: String) {
    // A second call is ignored: the version is constant in a process.
    let _ = PYTHON.set(minor);
}

/// A version of the protocol, the release that implements it, and the Python version that runs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    pub version: u32,
    pub name: String,
    pub python: Option<String>,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (protocol {}", self.name, self.version)?;
        if let Some(python) = &self.python {
            write!(f, ", Python {python}")?;
        }
        write!(f, ")")
    }
}

impl Release {
    pub fn ours() -> Release {
        Release { version: wire::VERSION, name: env!("CARGO_PKG_VERSION").into(), python: PYTHON.get().cloned() }
    }

    fn parse(version: u32, text: &str) -> Release {
        let (name, python) = match text.split_once(ON_PYTHON) {
            Some((name, python)) => (name, Some(python.to_owned())),
            None => (text, None),
        };
        Release { version, name: name.to_owned(), python }
    }

    fn text(&self) -> String {
        self.python.as_ref().map_or(self.name.clone(), |python| format!("{}{ON_PYTHON}{python}", self.name))
    }

    /// The minor release: `0.1` of `0.1.0`.
    fn minor(&self) -> &str {
        let end = self.name.match_indices('.').nth(1).map_or(self.name.len(), |(at, _)| at);
        &self.name[..end]
    }

    /// Fails if this release is incompatible with ours.
    pub fn check(self) -> Result<(), Refused> {
        let ours = Release::ours();
        let same = self.version == ours.version && self.minor() == ours.minor() && self.python == ours.python;
        if same { Ok(()) } else { Err(Refused::Version { ours, theirs: self }) }
    }
}

/// Appends the own preface.
pub fn put(out: &mut Vec<u8>) {
    let ours = Release::ours();
    let text = ours.text();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&ours.version.to_le_bytes());
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// Fails if these first bytes cannot be those of a preface.
pub fn begins(bytes: &[u8]) -> Result<(), Refused> {
    let n = bytes.len().min(MAGIC.len());
    if bytes[..n] == MAGIC[..n] {
        return Ok(());
    }
    Err(Refused::protocol(match bytes {
        [0x14..=0x17, ..] => "the other end uses TLS",
        [b' '..=b'~', ..] => "the other end sent text",
        _ => "the other end is not a monarch process",
    }))
}

/// The length of the whole preface, from its fixed part.
pub fn len(fixed: &[u8; FIXED]) -> usize {
    FIXED + fixed[FIXED - 1] as usize
}

/// Parses a complete preface.
pub fn parse(bytes: &[u8]) -> Result<Release, Refused> {
    begins(bytes)?;
    let (fixed, name) = bytes.split_first_chunk::<FIXED>().ok_or_else(|| Refused::protocol("malformed preface"))?;
    let [.., a, b, c, d, _] = *fixed;
    // Non-printable characters are replaced: the text goes to logs and terminals.
    let text: String = name.iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { '?' }).collect();
    Ok(Release::parse(u32::from_le_bytes([a, b, c, d]), &text))
}
