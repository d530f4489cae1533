//! TLS 1.3 records without a TLS connection, for a process that gets a stream whose handshake another process has made.
//!
//! An agent authenticates a stream and hands it to one of its procs, with the keys of this session only. Bytes then go from memory to
//! memory and never through the agent. The wire format stays TLS (RFC 8446, section 5): records of at most 16 KiB, each with its number in
//! the nonce. Neither side changes keys; a stream is closed long before its keys have protected as many records as they may.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

/// Most plaintext bytes of one record (RFC 8446).
pub const MOST: usize = 16 << 10;
/// Bytes before and behind the content of a record: type, version and length; the inner type and the tag.
pub const HEAD: usize = 5;
pub const TAIL: usize = 1 + 16;
/// Longest accepted record. The extra bytes allow some padding, which is legal.
const LONGEST: usize = HEAD + MOST + 256;
/// Records after which a stream is to be closed, and records after which it fails. AES-GCM keys may protect 2^24.5 records (RFC 8446,
/// section 5.5).
const SOFT_LIMIT: u64 = 1 << 23;
const HARD_LIMIT: u64 = 1 << 24;
/// The record type of application data.
const DATA: u8 = 23;
/// Bytes of the initialisation vector, from which the nonces are made.
const IV: usize = 12;

/// A record violates the protocol, or its bytes were changed on the way.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Forged;

/// The protection of one direction: algorithm, key, and the number of the next record.
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

/// The protection of both directions of a stream, as it is handed to another process of this host.
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

    /// The ciphers of the outgoing and of the incoming direction.
    pub fn ciphers(&self) -> Option<(Sealer, Opener)> {
        Some((Sealer(self.seal.cipher()?), Opener(self.open.cipher()?)))
    }
}

/// The cipher of one direction, ready for use.
struct Cipher {
    key: LessSafeKey,
    iv: [u8; IV],
    next: u64,
}

impl Cipher {
    /// The nonce of the next record; fails when the key is used up.
    fn nonce(&mut self) -> Result<Nonce, Forged> {
        if self.next >= HARD_LIMIT {
            return Err(Forged);
        }
        let mut nonce = self.iv;
        nonce[IV - 8..].iter_mut().zip(self.next.to_be_bytes()).for_each(|(n, b)| *n ^= b);
        self.next += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Encrypts the records of one direction.
pub struct Sealer(Cipher);

impl Sealer {
    /// Appends one record with these bytes, at most `MOST`.
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

    /// Whether the stream is to be closed soon: its key has protected `SOFT_LIMIT` records.
    pub fn needs_replacement(&self) -> bool {
        self.0.next >= SOFT_LIMIT
    }
}

/// Decrypts the records of one direction.
pub struct Opener(Cipher);

/// The length of the record at the start of `bytes`; `None` while its head is incomplete.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Forged> {
    let Some([_, _, _, a, b]) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let whole = HEAD + u16::from_be_bytes([*a, *b]) as usize;
    if whole > LONGEST { Err(Forged) } else { Ok(Some(whole)) }
}

impl Opener {
    /// Decrypts one whole record in place. Returns its content, or `None` for the record that announces the end.
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

    pub fn needs_replacement(&self) -> bool {
        self.0.next >= SOFT_LIMIT
    }
}
