//! An end that violates the protocol: TLS by hand, and frames as bytes.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use net::trust::{AuthHandshake, DialTrust, HostTrust, Identity, JobId, Opened, Progress, Refused, Target};
use ring::hmac;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring::default_provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection, SignatureScheme, StreamOwned};

use crate::ends::{Wire, connect, poll};

pub const NO: u8 = 0;
pub const PROOF: u8 = 1;
pub const ANSWER: u8 = 2;
pub const REQUEST: u8 = 3;
pub const CERTIFICATE: u8 = 4;
pub const HELLO: u8 = 5;
pub const WELCOME: u8 = 6;

pub fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (1 + body.len() as u16).to_le_bytes().to_vec();
    out.push(tag);
    out.extend_from_slice(body);
    out
}

pub fn release_of(version: u32, name: &[u8]) -> Vec<u8> {
    let mut out = b"\xe5monarch".to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out
}

pub fn release() -> Vec<u8> {
    release_of(wire::VERSION, env!("CARGO_PKG_VERSION").as_bytes())
}

pub fn request(kind: u8, job: JobId) -> Vec<u8> {
    let mut body = vec![kind];
    body.extend_from_slice(&job.0.to_le_bytes());
    frame(REQUEST, &body)
}

/// The proof as the protocol defines it.
pub fn proof(secret: &[u8], role: &str, job: JobId, authority: &[u8], exporter: [u8; 32]) -> Vec<u8> {
    let mut text = format!("monarch join/2 {role}\0").into_bytes();
    text.extend_from_slice(&job.0.to_le_bytes());
    text.extend_from_slice(&digest(authority));
    text.extend_from_slice(&exporter);
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &text).as_ref().to_vec()
}

pub fn digest(authority: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, authority).as_ref().to_vec()
}

pub fn label(job: JobId) -> ([u8; 32], &'static [u8], [u8; 8]) {
    ([0; 32], b"EXPORTER-monarch-join", job.0.to_le_bytes())
}

/// Drives one end on a thread of its own.
pub fn alone(mut handshake: AuthHandshake) -> JoinHandle<Result<Opened, Refused>> {
    std::thread::spawn(move || {
        loop {
            match handshake.drive() {
                Ok(Progress::Pending) => poll(&[(handshake.fd(), handshake.wants_write())]),
                Ok(Progress::Done(opened)) => return Ok(opened),
                Err(refused) => return Err(refused),
            }
        }
    })
}

fn socket(fd: OwnedFd) -> TcpStream {
    let socket = TcpStream::from(fd);
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// A socket to a host that accepts.
pub fn to_host(host: &Arc<HostTrust>) -> (TcpStream, JoinHandle<Result<Opened, Refused>>) {
    let (a, b) = connect(Wire::Tcp);
    (socket(a), alone(AuthHandshake::accept(b, host, "peer".into()).unwrap()))
}

/// A socket to a dialling end.
pub fn to_dialler(dial: &Arc<DialTrust>, target: Target) -> (TcpStream, JoinHandle<Result<Opened, Refused>>) {
    let (a, b) = connect(Wire::Tcp);
    (socket(b), alone(AuthHandshake::dial(a, dial, target, b"hello".to_vec()).unwrap()))
}

#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("tls 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

pub type Client = StreamOwned<ClientConnection, TcpStream>;
pub type Server = StreamOwned<ServerConnection, TcpStream>;

/// A TLS client that accepts every server and sends the given certificate.
pub fn connection(protocol: &str, name: &str, identity: Option<Arc<CertifiedKey>>) -> ClientConnection {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider)));
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config.enable_secret_extraction = true;
    ClientConnection::new(Arc::new(config), ServerName::try_from(name.to_owned()).unwrap()).unwrap()
}

pub fn client(socket: TcpStream, protocol: &str, name: &str, identity: Option<Arc<CertifiedKey>>) -> Client {
    StreamOwned::new(connection(protocol, name, identity), socket)
}

/// A TLS server that requests no certificate.
pub fn server(socket: TcpStream, protocol: &str, identity: &Identity) -> Server {
    let builder =
        ServerConfig::builder_with_provider(Arc::new(default_provider())).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), socket)
}

/// A new key with a self-signed certificate.
pub fn self_signed() -> Identity {
    let pair = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&pair).unwrap();
    Identity::from_der(vec![certificate.der().clone()], pair_key(&pair)).unwrap()
}

pub fn pair_key(pair: &rcgen::KeyPair) -> rustls::pki_types::PrivateKeyDer<'static> {
    rustls::pki_types::PrivatePkcs8KeyDer::from(pair.serialize_der()).into()
}

pub fn read_frame(from: &mut impl Read) -> (u8, Vec<u8>) {
    let mut header = [0; 3];
    from.read_exact(&mut header).unwrap();
    let mut body = vec![0; usize::from(u16::from_le_bytes([header[0], header[1]])) - 1];
    from.read_exact(&mut body).unwrap();
    (header[2], body)
}

pub fn read_release(from: &mut impl Read) {
    let mut got = vec![0; release().len()];
    from.read_exact(&mut got).unwrap();
    assert_eq!(got, release());
}

/// Reads until the end of the stream or an error.
pub fn rest(from: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = from.read_to_end(&mut all);
    all
}

/// Writes the bytes; errors are ignored.
pub fn write_all_to(to: &mut impl Write, bytes: &[u8]) {
    let _ = to.write_all(bytes);
    let _ = to.flush();
}
