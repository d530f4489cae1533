//! The steps of the listening end of a handshake.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rcgen::{KeyPair, PublicKeyData};
use rustls::server::Acceptor;

use crate::stream::Stream;
use crate::trust::auth_handshake::{Stepped, count};
use crate::trust::exchange::{Exchange, Tag};
use crate::trust::host::{HostTrust, Membership};
use crate::trust::identity::{Subject, names, new_pair, subject};
use crate::trust::policy::{JobId, Kind, Policy};
use crate::trust::preface;
use crate::trust::proof::{Claim, DIGEST, PROOF, Role, digest};
use crate::trust::refused::Refused;

/// Bytes read at once before the peer is known.
const CHUNK: usize = 4096;

/// The message that the handshake waits for.
enum Step {
    /// Selects the own certificate and the issuers of acceptable peer certificates, from the ClientHello.
    ClientHello(Box<Acceptor>),
    Handshake,
    Proof,
    Release,
    Request,
    Certificate,
    Hello,
    Flush,
}

/// The state of the listening end of one handshake.
pub(crate) struct Accepting {
    trust: Arc<HostTrust>,
    pub peer: String,
    step: Step,
    only: Option<(Kind, Option<JobId>)>,
    pair: Option<KeyPair>,
    /// The digest of the authority that the dialling side has named in its proof.
    authority: Option<[u8; DIGEST]>,
    membership: Option<Membership>,
    pub kind: Kind,
    pub job: JobId,
    pub hello: Vec<u8>,
    pub subject: Subject,
}

impl Accepting {
    pub fn start(fd: OwnedFd, trust: &Arc<HostTrust>, peer: String) -> (Exchange, Accepting) {
        let step = match trust.policy() {
            Policy::Secret(_) | Policy::Site(_) => Step::ClientHello(Box::default()),
            Policy::Insecure | Policy::SameUser => Step::Release,
        };
        let accepting = Accepting {
            trust: Arc::clone(trust),
            peer,
            step,
            only: None,
            pair: None,
            authority: None,
            membership: None,
            kind: Kind::Channel,
            job: JobId(0),
            hello: Vec::new(),
            subject: Subject::Unnamed,
        };
        (Exchange::new(Stream::plain(fd)), accepting)
    }

    /// Whether the TLS handshake, if one is required, has not begun.
    pub fn is_before_tls(&self) -> bool {
        matches!(self.step, Step::ClientHello(_))
    }

    /// Does the next step of the handshake.
    pub fn step(&mut self, exchange: &mut Exchange) -> Result<Stepped, Refused> {
        match &mut self.step {
            Step::ClientHello(acceptor) => {
                let mut bytes = Vec::new();
                match exchange.stream.read(&mut bytes, CHUNK) {
                    Ok(0) => return Err(Refused::Closed),
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Stepped::Blocked),
                    Err(e) => return Err(e.into()),
                }
                if bytes.first() == preface::MAGIC.first() {
                    return Err(Refused::protocol("the other end does not encrypt"));
                }
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    if acceptor.read_tls(&mut rest)? == 0 {
                        return Err(Refused::protocol("unexpected bytes after the ClientHello"));
                    }
                }
                let Some(accepted) = acceptor.accept().map_err(|(e, _)| e)? else { return Ok(Stepped::Next) };
                let selected = self.trust.select(&accepted.client_hello())?;
                self.only = selected.only;
                exchange.stream.encrypt(accepted.into_connection(selected.config).map_err(|(e, _)| e)?.into());
                self.step = Step::Handshake;
            }
            Step::Handshake => {
                if !exchange.stream.handshake()? {
                    return Ok(Stepped::Blocked);
                }
                count(exchange);
                self.step = if matches!(self.only, Some((Kind::Join, _))) { Step::Proof } else { Step::Release };
            }
            Step::Proof => {
                let Some(body) = exchange.frame(Tag::Proof)? else { return Ok(Stepped::Blocked) };
                self.prove(exchange, &body)?;
                self.step = Step::Release;
            }
            Step::Release => {
                self.trust.admits_user(exchange.stream.fd())?;
                let release = exchange.release();
                // Also an incompatible release is answered with the own release. In a join this was already sent.
                if self.pair.is_none() && matches!(release, Ok(Some(())) | Err(Refused::Version { .. })) {
                    exchange.put_release();
                }
                if release?.is_none() {
                    return Ok(Stepped::Blocked);
                }
                self.step = if self.pair.is_some() { Step::Certificate } else { Step::Request };
            }
            Step::Certificate => {
                let Some(body) = exchange.frame(Tag::Certificate)? else { return Ok(Stepped::Blocked) };
                self.certified(&body)?;
                self.step = Step::Request;
            }
            Step::Request => {
                let Some(body) = exchange.frame(Tag::Request)? else { return Ok(Stepped::Blocked) };
                self.requested(exchange, &body)?;
                self.step = Step::Hello;
            }
            Step::Hello => {
                let Some(hello) = exchange.frame(Tag::Hello)? else { return Ok(Stepped::Blocked) };
                self.hello = hello;
                self.trust.admit(self.kind, self.job, self.membership.take())?;
                exchange.put(Tag::Welcome, &[]);
                self.step = Step::Flush;
            }
            Step::Flush => return Ok(if exchange.flush()? { Stepped::Done } else { Stepped::Blocked }),
        }
        Ok(Stepped::Next)
    }

    /// Checks the proof of the dialling side, and answers with the own proof and a new key.
    fn prove(&mut self, exchange: &mut Exchange, body: &[u8]) -> Result<(), Refused> {
        let Policy::Secret(secret) = self.trust.policy() else { return Err(Refused::Secret) };
        let short = || Refused::protocol("a truncated proof");
        let (job, rest) = body.split_first_chunk().ok_or_else(short)?;
        let (authority, proof) = rest.split_first_chunk().ok_or_else(short)?;
        let job = JobId(u64::from_le_bytes(*job));
        let tls = exchange.stream.tls().ok_or_else(|| Refused::protocol("no encryption"))?;
        let theirs = Claim::new(Role::Dialler, job, authority, tls.connection())?;
        let ours = Claim::new(Role::Worker, job, authority, tls.connection())?;
        if proof.len() != PROOF || !theirs.verifies(secret, proof) {
            return Err(Refused::Secret);
        }
        let pair = new_pair()?;
        exchange.put(Tag::Answer, &[&ours.prove(secret), pair.der_bytes()]);
        exchange.put_release();
        self.only = Some((Kind::Join, Some(job)));
        self.job = job;
        self.pair = Some(pair);
        self.authority = Some(*authority);
        Ok(())
    }

    /// Takes the certificate of this host from the dialling side.
    fn certified(&mut self, body: &[u8]) -> Result<(), Refused> {
        let short = || Refused::protocol("a truncated certificate");
        let (host, rest) = body.split_first_chunk().ok_or_else(short)?;
        let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (certificate, authority) = rest.split_at_checked(u16::from_le_bytes(*length) as usize).ok_or_else(short)?;
        if self.authority != Some(digest(authority)) {
            return Err(Refused::Certificate("its authority is not the one of the proof".into()));
        }
        let pair = self.pair.as_ref().ok_or_else(short)?;
        self.membership = Some(Membership::new(self.job, u64::from_le_bytes(*host), pair, certificate, authority)?);
        Ok(())
    }

    /// Takes the kind and the job of the connection, and the identity of the dialling side.
    fn requested(&mut self, exchange: &mut Exchange, body: &[u8]) -> Result<(), Refused> {
        let malformed = || Refused::protocol("a malformed request");
        let [kind, job @ ..] = *<&[u8; 9]>::try_from(body).map_err(|_| malformed())?;
        self.kind = match kind {
            1 => Kind::Join,
            2 => Kind::Channel,
            _ => return Err(malformed()),
        };
        self.job = JobId(u64::from_le_bytes(job));
        let shown = exchange.stream.tls().and_then(|tls| tls.connection().peer_certificates()?.first().cloned());
        self.subject = match (self.only, shown) {
            (Some((kind, job)), _) if kind != self.kind || job != Some(self.job) => {
                return Err(Refused::protocol("a request for another job"));
            }
            (Some((Kind::Join, _)), _) => Subject::Client,
            (Some(_), Some(certificate)) => {
                subject(self.job, &certificate).ok_or_else(|| Refused::Certificate("it names no member of this job".into()))?
            }
            (None, Some(certificate)) => Subject::Site(names(&certificate).join(", ")),
            (_, None) => Subject::Unnamed,
        };
        Ok(())
    }
}
