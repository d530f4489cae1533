//! The steps of the dialling end of a handshake.
//!
//! `handshake → [proof → answer, release] → release, request, [certificate,] hello → release, welcome`. The steps in brackets happen only
//! when a host joins by a secret. If another host dials on behalf of the client, the certificate comes from the client.

use std::io;
use std::sync::Arc;

use rustls::ClientConnection;

use crate::stream::Stream;
use crate::sys;
use crate::trust::auth_handshake::{Stepped, count};
use crate::trust::authority::{Lifetime, PUBLIC_KEY};
use crate::trust::dialler::{DialTrust, Target};
use crate::trust::exchange::{Exchange, MAX_HELLO, Tag};
use crate::trust::identity::{Subject, names};
use crate::trust::policy::{JobId, Kind};
use crate::trust::proof::{Claim, PROOF, Role, digest};
use crate::trust::refused::Refused;

/// The message that the handshake waits for.
enum Step {
    Handshake,
    /// Waits for the worker's proof and its public key, and checks the proof.
    Answer,
    /// Waits for the worker's release. The certificate for this public key is requested only after it.
    JoinRelease(Vec<u8>),
    /// Waits for the certificate from the owner of the authority.
    Certificate,
    Release,
    Welcome,
}

/// The state of the dialling end of one handshake.
pub(crate) struct Dialling {
    trust: Arc<DialTrust>,
    pub target: Target,
    hello: Vec<u8>,
    step: Step,
    pub subject: Subject,
    /// A key that another process must certify, and the certificate.
    to_certify: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
}

impl Dialling {
    pub fn start(stream: Stream, trust: &Arc<DialTrust>, target: Target, hello: Vec<u8>) -> io::Result<(Exchange, Dialling)> {
        if hello.len() > MAX_HELLO {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a hello of {} bytes, {MAX_HELLO} at most", hello.len())));
        }
        let mut exchange = Exchange::new(stream);
        if let Some((config, name)) = trust.tls(&target)? {
            exchange.stream.encrypt(ClientConnection::new(config, name).map_err(io::Error::other)?.into());
        } else if trust.is_same_user() && sys::peer_user(exchange.stream.fd())? != sys::user() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process at the other end belongs to another user"));
        }
        let dialling = Dialling {
            trust: Arc::clone(trust),
            target,
            hello,
            step: Step::Handshake,
            subject: Subject::Unnamed,
            to_certify: None,
            certificate: None,
        };
        Ok((exchange, dialling))
    }

    pub fn job(&self) -> JobId {
        self.trust.job()
    }

    /// Does the next step of the handshake.
    pub fn step(&mut self, exchange: &mut Exchange) -> Result<Stepped, Refused> {
        match &mut self.step {
            Step::Handshake => {
                if !exchange.stream.handshake()? {
                    return Ok(Stepped::Blocked);
                }
                count(exchange);
                self.recognise(exchange);
                if self.target.kind == Kind::Join && self.trust.joins_with().is_some() {
                    self.prove(exchange)?;
                    self.step = Step::Answer;
                } else {
                    exchange.put_release();
                    self.ask(exchange);
                    self.step = Step::Release;
                }
            }
            Step::Answer => {
                let Some(answer) = exchange.frame(Tag::Answer)? else { return Ok(Stepped::Blocked) };
                let public_key = self.check(exchange, &answer)?;
                self.step = Step::JoinRelease(public_key);
            }
            Step::JoinRelease(public_key) => {
                let release = exchange.release();
                if matches!(release, Ok(None)) {
                    return Ok(Stepped::Blocked);
                }
                // The own release is sent also if the other one is incompatible.
                exchange.put_release();
                release.inspect_err(|_| drop(exchange.flush()))?;
                let public_key = std::mem::take(public_key);
                match self.trust.authority() {
                    Some(authority) => self.certificate = Some(authority.host(self.target.host, &public_key, Lifetime::usual())?.to_vec()),
                    None => self.to_certify = Some(public_key),
                }
                self.step = Step::Certificate;
            }
            Step::Certificate => {
                let Some(certificate) = self.certificate.take() else { return Ok(Stepped::Blocked) };
                self.certify(exchange, &certificate)?;
                self.ask(exchange);
                self.step = Step::Welcome;
            }
            Step::Release => {
                if exchange.release()?.is_none() {
                    return Ok(Stepped::Blocked);
                }
                self.step = Step::Welcome;
            }
            Step::Welcome => {
                return Ok(if exchange.frame(Tag::Welcome)?.is_some() { Stepped::Done } else { Stepped::Blocked });
            }
        }
        Ok(Stepped::Next)
    }

    /// Takes the identity of the other side from its certificate.
    fn recognise(&mut self, exchange: &mut Exchange) {
        let shown = exchange.stream.tls().and_then(|tls| tls.connection().peer_certificates()?.first().cloned());
        self.subject = match shown {
            None => Subject::Unnamed,
            Some(certificate) if self.trust.is_site() => Subject::Site(names(&certificate).join(", ")),
            // In a join this holds only at its end: the certificate is then made for this host.
            Some(_) => Subject::Host(self.target.host),
        };
    }

    fn claim(&self, exchange: &mut Exchange, role: Role) -> Result<Claim, Refused> {
        let tls = exchange.stream.tls().ok_or_else(|| Refused::protocol("no encryption"))?;
        let (_, authority) = self.trust.joins_with().ok_or(Refused::Secret)?;
        Ok(Claim::new(role, self.trust.job(), &digest(authority), tls.connection())?)
    }

    fn prove(&self, exchange: &mut Exchange) -> Result<(), Refused> {
        let Some((secret, authority)) = self.trust.joins_with() else { return Ok(()) };
        let proof = self.claim(exchange, Role::Dialler)?.prove(secret);
        exchange.put(Tag::Proof, &[&self.trust.job().0.to_le_bytes(), &digest(authority), &proof]);
        Ok(())
    }

    /// Checks the worker's proof of the secret; returns its public key.
    fn check(&self, exchange: &mut Exchange, answer: &[u8]) -> Result<Vec<u8>, Refused> {
        let (proof, public_key) = answer.split_at_checked(PROOF).ok_or_else(|| Refused::protocol("a truncated answer"))?;
        let (secret, _) = self.trust.joins_with().ok_or(Refused::Secret)?;
        if !self.claim(exchange, Role::Worker)?.verifies(secret, proof) {
            return Err(Refused::Secret);
        }
        if public_key.len() != PUBLIC_KEY {
            return Err(Refused::protocol("a malformed key"));
        }
        Ok(public_key.to_vec())
    }

    fn certify(&self, exchange: &mut Exchange, certificate: &[u8]) -> Result<(), Refused> {
        let (_, authority) = self.trust.joins_with().ok_or(Refused::Secret)?;
        let length = (certificate.len() as u16).to_le_bytes();
        exchange.put(Tag::Certificate, &[&self.target.host.to_le_bytes(), &length, certificate, authority]);
        Ok(())
    }

    /// The key that another process must certify; returned once.
    pub fn uncertified(&mut self) -> Option<Vec<u8>> {
        self.to_certify.take()
    }

    pub fn certified(&mut self, certificate: Vec<u8>) {
        self.certificate = Some(certificate);
    }

    /// Sends the request and the greeting.
    fn ask(&mut self, exchange: &mut Exchange) {
        exchange.put(Tag::Request, &[&[self.target.kind as u8], &self.trust.job().0.to_le_bytes()]);
        exchange.put(Tag::Hello, &[&std::mem::take(&mut self.hello)]);
    }
}
