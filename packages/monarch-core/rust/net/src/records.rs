//! TLS 1.3 records by themselves: for a process that gets a stream whose handshake another one has made.
//!
//! An agent authenticates a stream and hands it to one of its procs, with the keys of this one session and no others: bytes then go from
//! memory to memory and never through the agent. On the wire it stays TLS (RFC 8446, section 5): records of at most 16 KiB, each with its
//! number in the nonce. Neither side changes keys; a stream is given up long before its keys have protected as many records as they may.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

/// Plaintext of one record at most.
pub const MOST: usize = 16 << 10;
/// What a record has before and behind its content: type, version and length; the inner type and the tag.
pub const HEAD: usize = 5;
pub const TAIL: usize = 1 + 16;
/// A record at most; some padding is no error.
const LONGEST: usize = HEAD + MOST + 256;
/// Records after which a stream is given up; AES-GCM keys are good for 2^24.5 (RFC 8446, section 5.5).
const TIRED: u64 = 1 << 23;
const SPENT: u64 = 1 << 24;
const DATA: u8 = 23;
const IV: usize = 12;

/// The other side does not keep to the protocol, or somebody has changed what it sent.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Forged;

/// What protects one direction: algorithm, key, and the number of the next record.
struct Secret {
    suite: u8,
    key: Vec<u8>,
    iv: [u8; IV],
    next: u64,
}

impl Secret {
    fn of(next: u64, secrets: &ConnectionTrafficSecrets) -> Option<Secret> {
        let (suite, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (1, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (2, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (3, key, iv),
            _ => return None,
        };
        Some(Secret { suite, key: key.as_ref().to_vec(), iv: iv.as_ref().try_into().ok()?, next })
    }

    fn algorithm(suite: u8) -> Option<&'static Algorithm> {
        Some(match suite {
            1 => &AES_128_GCM,
            2 => &AES_256_GCM,
            3 => &CHACHA20_POLY1305,
            _ => return None,
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.suite);
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&self.iv);
        out.extend_from_slice(&self.key);
    }

    fn take(bytes: &mut &[u8]) -> Option<Secret> {
        let (suite, rest) = bytes.split_first()?;
        let (next, rest) = rest.split_first_chunk()?;
        let (iv, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(Secret::algorithm(*suite)?.key_len())?;
        *bytes = rest;
        Some(Secret { suite: *suite, key: key.to_vec(), iv: *iv, next: u64::from_le_bytes(*next) })
    }

    fn cipher(&self) -> Option<Cipher> {
        let key = UnboundKey::new(Secret::algorithm(self.suite)?, &self.key).ok()?;
        Some(Cipher { key: LessSafeKey::new(key), iv: self.iv, next: self.next })
    }
}

/// What protects a stream, to be handed to another process of this host.
pub struct Keys {
    seal: Secret,
    open: Secret,
}

impl Keys {
    pub(crate) fn new(secrets: &rustls::ExtractedSecrets) -> Option<Keys> {
        let (seal, open) = (&secrets.tx, &secrets.rx);
        Some(Keys { seal: Secret::of(seal.0, &seal.1)?, open: Secret::of(open.0, &open.1)? })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.seal.put(&mut out);
        self.open.put(&mut out);
        out
    }

    pub fn from_bytes(mut bytes: &[u8]) -> Option<Keys> {
        let (seal, open) = (Secret::take(&mut bytes)?, Secret::take(&mut bytes)?);
        bytes.is_empty().then_some(Keys { seal, open })
    }

    /// For the bytes that go out, and for those that come in.
    pub fn ciphers(&self) -> Option<(Sealer, Opener)> {
        Some((Sealer(self.seal.cipher()?), Opener(self.open.cipher()?)))
    }
}

struct Cipher {
    key: LessSafeKey,
    iv: [u8; IV],
    next: u64,
}

impl Cipher {
    fn nonce(&mut self) -> Result<Nonce, Forged> {
        if self.next >= SPENT {
            return Err(Forged);
        }
        let mut nonce = self.iv;
        nonce[IV - 8..].iter_mut().zip(self.next.to_be_bytes()).for_each(|(n, b)| *n ^= b);
        self.next += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

pub struct Sealer(Cipher);

impl Sealer {
    /// Appends one record with these bytes, `MOST` at most.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Forged> {
        let start = out.len();
        let length = (plain.len() + TAIL) as u16;
        out.extend_from_slice(&[DATA, 3, 3]);
        out.extend_from_slice(&length.to_be_bytes());
        let head: [u8; HEAD] = out[start..].try_into().map_err(|_| Forged)?;
        out.extend_from_slice(plain);
        out.push(DATA);
        let nonce = self.0.nonce()?;
        let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut out[start + HEAD..]).map_err(|_| Forged)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// The stream is to be given up soon.
    pub fn is_tired(&self) -> bool {
        self.0.next >= TIRED
    }
}

pub struct Opener(Cipher);

/// How long the record is that begins here; none if that is not known yet.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Forged> {
    let Some([_, _, _, a, b]) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let whole = HEAD + u16::from_be_bytes([*a, *b]) as usize;
    if whole > LONGEST { Err(Forged) } else { Ok(Some(whole)) }
}

impl Opener {
    /// Decrypts one whole record where it is: its content, which is data; nothing at the announced end.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Option<&'a mut [u8]>, Forged> {
        let (head, body) = record.split_first_chunk_mut::<HEAD>().ok_or(Forged)?;
        let nonce = self.0.nonce()?;
        let plain = self.0.key.open_in_place(nonce, Aad::from(*head), body).map_err(|_| Forged)?;
        // The type is the last byte that is not padding.
        let end = plain.iter().rposition(|b| *b != 0).ok_or(Forged)?;
        match plain[end] {
            DATA => Ok(Some(&mut plain[..end])),
            21 => Ok(None),
            _ => Err(Forged),
        }
    }

    pub fn is_tired(&self) -> bool {
        self.0.next >= TIRED
    }
}
