//! Two ends of a connection, driven by one thread.
#![allow(dead_code)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use net::Stream;
use net::trust::{AuthHandshake, DialTrust, HostTrust, JobId, Kind, Opened, Policy, Progress, Refused, Secret, SitePki, Target};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

pub const JOB: JobId = JobId(0x1234_5678_9abc_def0);
pub const HOST: u64 = 0xfeed;

pub fn secret(byte: u8) -> Secret {
    Secret::from_bytes(&[byte; 32]).unwrap()
}

/// Waits for either descriptor for at most 20 s, so that a test which hangs fails.
pub fn poll(fds: &[(RawFd, bool)]) {
    let mut polled: Vec<_> = fds
        .iter()
        .filter(|(fd, _)| *fd >= 0)
        .map(|(fd, write)| libc::pollfd { fd: *fd, events: libc::POLLIN | if *write { libc::POLLOUT } else { 0 }, revents: 0 })
        .collect();
    // SAFETY: the array outlives the call.
    let n = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 20_000) };
    assert!(n > 0, "nothing happened for 20 s");
}

pub fn target(kind: Kind) -> Target {
    Target { kind, host: HOST, name: "localhost".into() }
}

/// Drives both ends until their handshakes are complete or refused.
pub fn drive(mut a: AuthHandshake, mut b: AuthHandshake) -> (Result<Opened, Refused>, Result<Opened, Refused>) {
    let (mut left, mut right) = (None, None);
    loop {
        for (end, result) in [(&mut a, &mut left), (&mut b, &mut right)] {
            if result.is_none() {
                *result = match end.drive() {
                    Ok(Progress::Pending) => None,
                    Ok(Progress::Done(opened)) => Some(Ok(opened)),
                    Err(refused) => Some(Err(refused)),
                };
            }
        }
        match (left, right) {
            (Some(left), Some(right)) => return (left, right),
            (l, r) => (left, right) = (l, r),
        }
        poll(&[(a.fd(), a.wants_write()), (b.fd(), b.wants_write())]);
    }
}

/// The kind of connection between the two ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Wire {
    Inproc,
    Unix,
    Tcp,
}

pub fn connect(wire: Wire) -> (OwnedFd, OwnedFd) {
    let (a, b): (OwnedFd, OwnedFd) = match wire {
        Wire::Inproc => return net::sys::socketpair().unwrap(),
        Wire::Unix => {
            let dir = tempdir();
            let listener = UnixListener::bind(dir.0.join("door")).unwrap();
            let a = UnixStream::connect(dir.0.join("door")).unwrap();
            (a.into(), listener.accept().unwrap().0.into())
        }
        Wire::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let b = listener.accept().unwrap().0;
            a.set_nodelay(true).unwrap();
            b.set_nodelay(true).unwrap();
            (a.into(), b.into())
        }
    };
    (a, b)
}

pub struct Dir(pub std::path::PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn tempdir() -> Dir {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("monarch-net-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    Dir(path)
}

/// The credentials of both ends, and the kind of connection between them.
pub struct Pair {
    pub dial: Arc<DialTrust>,
    pub host: Arc<HostTrust>,
    pub wire: Wire,
}

impl Pair {
    pub fn new(wire: Wire, dial: Policy, host: Policy) -> Pair {
        Pair { dial: Arc::new(DialTrust::new_client(JOB, dial).unwrap()), host: Arc::new(HostTrust::new(host).unwrap()), wire }
    }

    pub fn same(wire: Wire, policy: Policy) -> Pair {
        Pair::new(wire, policy.clone(), policy)
    }

    pub fn open(&self, target: Target, hello: &[u8]) -> (Result<Opened, Refused>, Result<Opened, Refused>) {
        open(self.wire, &self.dial, &self.host, target, hello)
    }

    /// Connects once as a client that joins the host; returns both ends.
    pub fn join(&self) -> (Opened, Opened) {
        let (a, b) = self.open(target(Kind::Join), b"join");
        (a.unwrap(), b.unwrap())
    }

    pub fn channel(&self) -> (Stream, Stream) {
        let (a, b) = self.open(target(Kind::Channel), b"channel");
        (a.unwrap().stream, b.unwrap().stream)
    }
}

pub fn open(
    wire: Wire,
    dial: &Arc<DialTrust>,
    host: &Arc<HostTrust>,
    target: Target,
    hello: &[u8],
) -> (Result<Opened, Refused>, Result<Opened, Refused>) {
    let (a, b) = connect(wire);
    drive(AuthHandshake::dial(a, dial, target, hello.to_vec()).unwrap(), AuthHandshake::accept(b, host, "peer".into()).unwrap())
}

/// A site with one authority.
pub struct Site {
    issuer: Issuer<'static, KeyPair>,
    pub ca: String,
}

/// The names, the dates and the usages of a certificate of the site.
pub struct Paper<'a> {
    pub names: &'a [&'a str],
    pub days: (i64, i64),
    pub usages: &'a [ExtendedKeyUsagePurpose],
}

impl Default for Paper<'_> {
    fn default() -> Self {
        Paper {
            names: &["localhost", "127.0.0.1"],
            days: (-1, 1),
            usages: &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        }
    }
}

impl Site {
    pub fn new() -> Site {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = pem("CERTIFICATE", params.self_signed(&key).unwrap().der());
        Site { issuer: Issuer::new(params, key), ca }
    }

    /// A key and its certificate, as PEM.
    pub fn issue(&self, paper: &Paper<'_>) -> String {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = paper.names.iter().map(|n| n.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let day = |n: i64| {
            let away = std::time::Duration::from_secs(n.unsigned_abs() * 86_400);
            let now = std::time::SystemTime::now();
            if n < 0 { now - away } else { now + away }
        };
        params.not_before = day(paper.days.0).into();
        params.not_after = day(paper.days.1).into();
        params.extended_key_usages = paper.usages.to_vec();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        pem("PRIVATE KEY", key.serialized_der()) + &pem("CERTIFICATE", certificate.der())
    }

    pub fn policy(&self, paper: &Paper<'_>) -> Policy {
        Policy::Site(SitePki::from_pem(self.issue(paper).as_bytes(), self.ca.as_bytes()).unwrap())
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (i, three) in der.chunks(3).enumerate() {
        let word = three.iter().enumerate().fold(0u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for j in 0..4 {
            let letter = if j <= three.len() { ALPHABET[(word >> (18 - 6 * j)) as usize & 63] } else { b'=' };
            text.push(char::from(letter));
        }
        if i % 16 == 15 {
            text.push('\n');
        }
    }
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", text.trim_end())
}

/// The five ways to connect two ends.
pub fn all() -> Vec<(&'static str, Pair)> {
    let site = Site::new();
    let paper = Paper::default();
    vec![
        ("inproc", Pair::same(Wire::Inproc, Policy::SameUser)),
        ("unix", Pair::same(Wire::Unix, Policy::SameUser)),
        ("tls with a secret", Pair::same(Wire::Tcp, Policy::Secret(secret(7)))),
        ("site pki", Pair::new(Wire::Tcp, site.policy(&paper), site.policy(&paper))),
        ("insecure tcp", Pair::same(Wire::Tcp, Policy::Insecure)),
    ]
}
