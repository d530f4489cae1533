//! Refused connections: this side's log has the reason, and the peer receives only the refusal.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::ends::{HOST, JOB, Pair, Wire, connect, drive, open, secret, target};
use crate::rogue::*;
use net::trust::{
    AuthHandshake, Authority, DialTrust, HostTrust, Identity, JobId, Kind, Lifetime, MAX_HELLO, Policy, Progress, Refused, Release, Target,
};

const OTHER: JobId = JobId(77);
const DAY: Duration = Duration::from_secs(86_400);

fn by_secret(byte: u8) -> Policy {
    Policy::Secret(secret(byte))
}

fn joined() -> Pair {
    let pair = Pair::same(Wire::Tcp, by_secret(1));
    pair.join();
    pair
}

fn name_of(host: u64, job: JobId) -> String {
    format!("h{host:016x}.j{job}.monarch.internal")
}

#[test]
fn wrong_secret_is_refused() {
    for wire in [Wire::Tcp, Wire::Inproc] {
        let (a, b) = Pair::new(wire, by_secret(1), by_secret(2)).open(target(Kind::Join), b"x");
        assert!(matches!(a, Err(Refused::Denied(_))));
        assert!(matches!(b, Err(Refused::Secret)));
        assert_eq!(b.err().unwrap().to_string(), "wrong job secret");
    }
}

/// The worker sends a key, and answers with the proof that it received, or with other bytes.
#[test]
fn worker_without_the_secret_is_refused() {
    for echo in [true, false] {
        let dial = Arc::new(DialTrust::new_client(JOB, by_secret(1)).unwrap());
        let (socket, dialler) = to_dialler(&dial, target(Kind::Join));
        let mut server = server(socket, "monarch-join/1", &self_signed());
        let (tag, body) = read_frame(&mut server);
        assert_eq!((tag, body.len()), (PROOF, 72));
        let mut answer = if echo { body[40..].to_vec() } else { vec![0; 32] };
        answer.extend_from_slice(&[4; 65]);
        write_all_to(&mut server, &frame(ANSWER, &answer));
        write_all_to(&mut server, &release());
        assert!(matches!(dialler.join().unwrap(), Err(Refused::Secret)));
        // The worker has received nothing after its answer.
        assert!(rest(&mut server).is_empty());
    }
}

/// A man in the middle forwards the proof on a TLS session of its own.
#[test]
fn replayed_proof_is_refused() {
    let pair = Pair::same(Wire::Tcp, by_secret(1));
    let (socket, dialler) = to_dialler(&pair.dial, target(Kind::Join));
    let mut middle = server(socket, "monarch-join/1", &self_signed());
    let (_, recorded) = read_frame(&mut middle);
    for _ in 0..2 {
        let (socket, host) = to_host(&pair.host);
        let mut client = client(socket, "monarch-join/1", &name_of(HOST, JOB), None);
        write_all_to(&mut client, &frame(PROOF, &recorded));
        assert_eq!(rest(&mut client), frame(NO, &[]));
        assert!(matches!(host.join().unwrap(), Err(Refused::Secret)));
    }
    drop(middle);
    assert!(matches!(dialler.join().unwrap(), Err(Refused::Closed)));
    assert!(pair.host.jobs().is_empty());
}

type Joining = std::thread::JoinHandle<Result<net::trust::Opened, Refused>>;

/// A join by hand up to the answer, with the right secret, for that authority.
fn join_by_hand(host: &Arc<HostTrust>, job: JobId, authority: &[u8]) -> (Client, Joining, Vec<u8>) {
    let (socket, host) = to_host(host);
    let mut client = client(socket, "monarch-join/1", &name_of(HOST, job), None);
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock).unwrap();
    }
    let (out, text, context) = label(job);
    let exporter = client.conn.export_keying_material(out, text, Some(&context)).unwrap();
    let mut body = job.0.to_le_bytes().to_vec();
    body.extend_from_slice(&digest(authority));
    body.extend_from_slice(&proof(&[1; 32], "dialler", job, authority, exporter));
    write_all_to(&mut client, &frame(PROOF, &body));
    let (tag, answer) = read_frame(&mut client);
    assert_eq!(tag, ANSWER);
    assert_eq!(answer[..32], proof(&[1; 32], "worker", job, authority, exporter));
    read_release(&mut client);
    (client, host, answer[32..].to_vec())
}

fn certificate(host: u64, certificate: &[u8], authority: &[u8]) -> Vec<u8> {
    let mut body = host.to_le_bytes().to_vec();
    body.extend_from_slice(&(certificate.len() as u16).to_le_bytes());
    body.extend_from_slice(certificate);
    body.extend_from_slice(authority);
    frame(CERTIFICATE, &body)
}

/// The hand-written protocol of these tests is the real one.
#[test]
fn join_by_single_frames_succeeds() {
    let host = Arc::new(HostTrust::new(by_secret(1)).unwrap());
    let authority = Authority::new(JOB).unwrap();
    let (mut client, joined, key) = join_by_hand(&host, JOB, authority.certificate());
    let issued = authority.host(HOST, &key, Lifetime::usual()).unwrap();
    write_all_to(
        &mut client,
        &[release(), certificate(HOST, &issued, authority.certificate()), request(1, JOB), frame(HELLO, b"hand")].concat(),
    );
    assert_eq!(read_frame(&mut client), (WELCOME, vec![]));
    let opened = joined.join().unwrap().unwrap();
    assert_eq!((opened.hello.as_slice(), opened.job), (&b"hand"[..], JOB));
    assert!(host.has_job(JOB));
}

/// Certificates that a host refuses, even from a client that knows the secret.
#[test]
fn certificates_that_a_host_does_not_take() {
    let host = Arc::new(HostTrust::new(by_secret(1)).unwrap());
    let (authority, other) = (Authority::new(JOB).unwrap(), Authority::new(OTHER).unwrap());
    let past = Lifetime { from: SystemTime::now() - 3 * DAY, until: SystemTime::now() - 2 * DAY };
    let ca = authority.certificate().to_vec();
    let wrong_key = Identity::certified(&authority.client(Lifetime::usual()).unwrap()).cert[0].to_vec();
    type Make<'a> = Box<dyn Fn(&[u8]) -> Vec<u8> + 'a>;
    let theirs = other.certificate().to_vec();
    let cases: Vec<(&str, &[u8], Make)> = vec![
        ("expired", &ca, Box::new(|key| certificate(HOST, &authority.host(HOST, key, past).unwrap(), &ca))),
        ("name mismatch", &ca, Box::new(|key| certificate(HOST, &authority.host(HOST + 1, key, Lifetime::usual()).unwrap(), &ca))),
        ("name mismatch", &theirs, Box::new(|key| certificate(HOST, &other.host(HOST, key, Lifetime::usual()).unwrap(), &theirs))),
        ("not the one of the proof", &ca, Box::new(|key| certificate(HOST, &other.host(HOST, key, Lifetime::usual()).unwrap(), &theirs))),
        ("issuer", &ca, Box::new(|key| certificate(HOST, &other.host(HOST, key, Lifetime::usual()).unwrap(), &ca))),
        ("not for this use", &ca, Box::new(|_| certificate(HOST, &wrong_key, &ca))),
        ("", &ca, Box::new(|_| certificate(HOST, b"rubbish", &ca))),
        ("", b"rubbish", Box::new(|key| certificate(HOST, &authority.host(HOST, key, Lifetime::usual()).unwrap(), b"rubbish"))),
        ("", &ca, Box::new(|_| certificate(HOST, &authority.host(HOST, &generator_key(), Lifetime::usual()).unwrap(), &ca))),
    ];
    for (text, named, make) in cases {
        let (mut client, joined, key) = join_by_hand(&host, JOB, named);
        write_all_to(&mut client, &[release(), make(&key), request(1, JOB), frame(HELLO, b"")].concat());
        assert_eq!(rest(&mut client), frame(NO, &[]), "{text}");
        match joined.join().unwrap().err().unwrap() {
            Refused::Certificate(why) => assert!(why.contains(text), "{why:?}, not {text}"),
            other => panic!("{text}: {other}"),
        }
        assert!(!host.has_job(JOB));
    }
}

/// A public key of another pair.
fn generator_key() -> Vec<u8> {
    rcgen::PublicKeyData::der_bytes(&rcgen::KeyPair::generate().unwrap()).to_vec()
}

#[test]
fn job_of_another_client_is_refused() {
    let pair = joined();
    let other_client = Pair { dial: Arc::new(DialTrust::new_client(JOB, by_secret(1)).unwrap()), host: pair.host.clone(), wire: Wire::Tcp };
    let (a, b) = other_client.open(target(Kind::Join), b"");
    assert!(matches!(a, Err(Refused::Denied(_))));
    assert!(matches!(b, Err(Refused::Authority(JOB))));
    // The first client still owns the job.
    pair.channel();
}

#[test]
fn client_of_another_authority_is_refused() {
    let pair = joined();
    let other = Arc::new(DialTrust::new_client(JOB, by_secret(1)).unwrap());
    let (a, b) = open(Wire::Tcp, &other, &pair.host, target(Kind::Channel), b"");
    assert_eq!(a.err().unwrap().to_string(), "certificate: unknown issuer");
    assert!(matches!(b, Err(Refused::Denied(_))));
}

/// Certificates sent to a host whose own certificate is not checked.
#[test]
fn certificates_of_a_dialler() {
    let pair = joined();
    let authority = pair.dial.authority().unwrap();
    let now = SystemTime::now();
    let same_job = Authority::new(JOB).unwrap();
    let other_job = Authority::new(OTHER).unwrap();
    let issued = |by: &Authority, from, until| Some(by.client(Lifetime { from, until }).unwrap());
    let cases = [
        ("the peer sent none", None),
        ("expired 2 days ago", issued(authority, now - 4 * DAY, now - 2 * DAY)),
        ("not valid before 2 days from now", issued(authority, now + 2 * DAY + DAY / 2, now + 4 * DAY)),
        ("unknown issuer", issued(&same_job, now - DAY, now + DAY)),
        ("unknown issuer", issued(&other_job, now - DAY, now + DAY)),
        ("unknown issuer", Some(self_signed())),
    ];
    for (text, identity) in cases {
        let (socket, host) = to_host(&pair.host);
        let mut client = client(socket, "monarch/1", &name_of(HOST, JOB), identity.map(|i| i.certified()));
        write_all_to(&mut client, &[release(), request(2, JOB), frame(HELLO, b"")].concat());
        // The client receives only an alert, without a reason.
        assert!(rest(&mut client).is_empty(), "{text}");
        match host.join().unwrap().err().unwrap() {
            Refused::Certificate(why) => assert!(why.starts_with(text), "{why:?}, not {text}"),
            other => panic!("{text}: {other}"),
        }
    }
    let (socket, host) = to_host(&pair.host);
    let good = authority.client(Lifetime::usual()).unwrap().certified();
    let mut client = client(socket, "monarch/1", &name_of(HOST, JOB), Some(good));
    write_all_to(&mut client, &[release(), request(2, JOB), frame(HELLO, b"")].concat());
    read_release(&mut client);
    assert_eq!(read_frame(&mut client), (WELCOME, vec![]));
    host.join().unwrap().unwrap();
}

/// Certificates of the answering end.
#[test]
fn certificates_of_a_host() {
    let dial = Arc::new(DialTrust::new_client(JOB, by_secret(1)).unwrap());
    let (authority, other) = (dial.authority().unwrap(), Authority::new(JOB).unwrap());
    let now = SystemTime::now();
    let usual = Lifetime::usual();
    let host = |by: &Authority, host, lifetime| {
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate = by.host(host, rcgen::PublicKeyData::der_bytes(&pair), lifetime).unwrap();
        Identity::from_der(vec![certificate], pair_key(&pair)).unwrap()
    };
    let cases = [
        ("name mismatch", host(authority, HOST + 1, usual)),
        ("unknown issuer", host(&other, HOST, usual)),
        ("expired", host(authority, HOST, Lifetime { from: now - 4 * DAY, until: now - 2 * DAY })),
        ("not for this use", authority.client(usual).unwrap()),
        ("unknown issuer", self_signed()),
    ];
    for (text, identity) in cases {
        let (socket, dialler) = to_dialler(&dial, target(Kind::Channel));
        let mut server = server(socket, "monarch/1", &identity);
        write_all_to(&mut server, &[release(), frame(WELCOME, &[])].concat());
        assert!(rest(&mut server).is_empty(), "{text}");
        match dialler.join().unwrap().err().unwrap() {
            Refused::Certificate(why) => assert!(why.starts_with(text), "{why:?}, not {text}"),
            other => panic!("{text}: {other}"),
        }
    }
}

#[test]
fn jobs_and_hosts_that_are_not_known() {
    let pair = joined();
    let (a, b) = pair.open(Target { host: HOST + 1, ..target(Kind::Channel) }, b"");
    assert!(matches!((a, b), (Err(Refused::Denied(_)), Err(Refused::Job(JOB)))));
    for policy in [by_secret(1), Policy::Insecure, Policy::SameUser] {
        let wire = if matches!(policy, Policy::SameUser) { Wire::Unix } else { Wire::Tcp };
        let (a, b) = Pair::same(wire, policy).open(target(Kind::Channel), b"");
        assert!(matches!((a, b), (Err(Refused::Denied(_)), Err(Refused::Job(JOB)))));
    }
}

/// A certificate is valid for its own job only.
#[test]
fn request_for_another_job_is_refused() {
    let pair = joined();
    let second = Pair { dial: Arc::new(DialTrust::new_client(OTHER, by_secret(1)).unwrap()), host: pair.host.clone(), wire: Wire::Tcp };
    second.join();
    let identity = pair.dial.authority().unwrap().client(Lifetime::usual()).unwrap().certified();
    for (kind, job) in [(2, OTHER), (1, JOB), (3, JOB)] {
        let (socket, host) = to_host(&pair.host);
        let mut client = client(socket, "monarch/1", &name_of(HOST, JOB), Some(identity.clone()));
        write_all_to(&mut client, &[release(), request(kind, job), frame(HELLO, b"")].concat());
        read_release(&mut client);
        assert_eq!(rest(&mut client), frame(NO, &[]));
        assert!(matches!(host.join().unwrap(), Err(Refused::Protocol(_))));
    }
}

#[test]
fn forgotten_job_is_refused_until_it_joins_again() {
    for (name, pair) in crate::ends::all() {
        pair.join();
        let from_host = pair.host.dial(JOB).unwrap();
        let (mut a, mut b) = pair.channel();
        let (x, y) = connect(pair.wire);
        let late = AuthHandshake::dial(x, &pair.dial, target(Kind::Channel), vec![]).unwrap();
        let mut half = AuthHandshake::accept(y, &pair.host, "peer".into()).unwrap();
        assert!(matches!(half.drive(), Ok(Progress::Pending)));
        pair.host.forget(JOB);
        pair.host.forget(OTHER);

        assert!(pair.host.dial(JOB).is_none() && !pair.host.has_job(JOB), "{name}");
        let (dialled, accepted) = pair.open(target(Kind::Channel), b"");
        assert!(matches!(accepted, Err(Refused::Job(JOB))), "{name}");
        assert!(dialled.is_err(), "{name}");
        // The forgotten certificate cannot be used for dialling either.
        let (fd, _other) = connect(pair.wire);
        assert!(AuthHandshake::dial(fd, &from_host, target(Kind::Channel), vec![]).is_err(), "{name}");
        // Handshakes in progress fail too.
        let (dialled, accepted) = drive(late, half);
        assert!(dialled.is_err() && accepted.is_err(), "{name}");
        // Open streams stay open, and the job may join again.
        assert_eq!(a.write(&[b"still"]).unwrap(), 5, "{name}");
        crate::ends::poll(&[(b.fd(), false)]);
        assert_eq!(b.read(&mut Vec::new(), 9).unwrap(), 5, "{name}");
        pair.join();
        pair.channel();
        assert!(pair.host.dial(JOB).is_some(), "{name}");
    }
}

/// A host may join under several ids, and again, which renews its certificate.
#[test]
fn host_joins_again_by_a_second_id() {
    let pair = joined();
    let second = Target { host: HOST + 1, ..target(Kind::Join) };
    let (a, b) = pair.open(second.clone(), b"");
    assert!(a.is_ok() && b.is_ok());
    pair.join();
    for host in [HOST, HOST + 1] {
        let (a, b) = pair.open(Target { host, ..target(Kind::Channel) }, b"");
        assert_eq!(a.unwrap().subject, net::trust::Subject::Host(host));
        b.unwrap();
    }
}

/// A host of the job joins another host on behalf of the client, which signs.
#[test]
fn host_joins_another_as_a_relay() {
    let client = joined();
    let relay = client.host.relay(JOB).unwrap();
    let second = Target { host: HOST + 1, ..target(Kind::Join) };
    let host = Arc::new(HostTrust::new(by_secret(1)).unwrap());
    let sign = |key: &[u8]| client.dial.authority().unwrap().host(HOST + 1, key, Lifetime::usual()).unwrap().to_vec();
    assert!(open_by_relay(&relay, &host, second.clone(), sign).1.is_ok());
    assert!(host.has_job(JOB));
    // Other hosts and the client reach it like any host.
    let others = [client.host.dial(JOB).unwrap(), client.dial.clone()];
    for dial in others {
        let (a, b) = Pair { dial, host: host.clone(), wire: Wire::Tcp }.open(Target { kind: Kind::Channel, ..second.clone() }, b"");
        assert!(a.is_ok() && b.is_ok());
    }
    // The credentials of a relay serve no other purpose.
    assert!(AuthHandshake::dial(connect(Wire::Tcp).0, &relay, target(Kind::Channel), vec![]).is_err());
    client.host.forget(JOB);
    assert!(AuthHandshake::dial(connect(Wire::Tcp).0, &relay, second, vec![]).is_err());
}

/// A relay can neither join a worker to a job of another client than the one that signs, nor issue certificates itself.
#[test]
fn false_certificate_of_a_relay_is_refused() {
    let client = joined();
    let relay = client.host.relay(JOB).unwrap();
    let other = Authority::new(JOB).unwrap();
    for (issuer, text) in [(&other, "unknown issuer"), (client.dial.authority().unwrap(), "name mismatch")] {
        let host = Arc::new(HostTrust::new(by_secret(1)).unwrap());
        let sign = |key: &[u8]| issuer.host(HOST + 2, key, Lifetime::usual()).unwrap().to_vec();
        let (a, b) = open_by_relay(&relay, &host, Target { host: HOST + 1, ..target(Kind::Join) }, sign);
        assert!(matches!(a, Err(Refused::Denied(_))));
        assert!(b.err().unwrap().to_string().contains(text));
        assert!(!host.has_job(JOB));
    }
}

type Ends = (Result<net::trust::Opened, Refused>, Result<net::trust::Opened, Refused>);

fn open_by_relay(relay: &Arc<DialTrust>, host: &Arc<HostTrust>, to: Target, sign: impl Fn(&[u8]) -> Vec<u8>) -> Ends {
    let (x, y) = connect(Wire::Tcp);
    let (mut a, mut b) = (AuthHandshake::dial(x, relay, to, vec![]).unwrap(), AuthHandshake::accept(y, host, "peer".into()).unwrap());
    let key = loop {
        assert!(matches!((a.drive(), b.drive()), (Ok(Progress::Pending), Ok(Progress::Pending))));
        if let Some(key) = a.uncertified() {
            break key;
        }
    };
    assert!(a.uncertified().is_none());
    a.certified(sign(&key));
    drive(a, b)
}

#[test]
fn other_versions() {
    for (policy, wire) in [(Policy::Insecure, Wire::Tcp), (Policy::SameUser, Wire::Unix)] {
        let theirs = release_of(wire::VERSION + 1, b"9.9.9\x1b[2J");
        let pair = Pair::same(wire, policy);
        let (x, y) = connect(wire);
        let host = alone(AuthHandshake::accept(y, &pair.host, "peer".into()).unwrap());
        let mut raw = std::fs::File::from(x);
        write_all_to(&mut raw, &theirs);
        read_release(&mut raw);
        assert_eq!(rest(&mut raw), frame(NO, &[]));
        check_version(host.join().unwrap().err().unwrap());

        let (x, y) = connect(wire);
        let dialler = alone(AuthHandshake::dial(x, &pair.dial, target(Kind::Join), vec![]).unwrap());
        let mut raw = std::fs::File::from(y);
        write_all_to(&mut raw, &theirs);
        read_release(&mut raw);
        check_version(dialler.join().unwrap().err().unwrap());
    }
}

fn check_version(refused: Refused) {
    let expected = format!(
        "version 9.9.9?[2J (protocol {}) at the other end, {} (protocol {}) here",
        wire::VERSION + 1,
        env!("CARGO_PKG_VERSION"),
        wire::VERSION
    );
    assert_eq!(refused.to_string(), expected);
    assert!(matches!(refused, Refused::Version { .. }) && !refused.is_transient());
}

/// Patch releases are compatible. Minor releases are not, nor is a build that names a Python version with one that does not.
#[test]
fn versions_that_can_talk() {
    let ours = Release::ours();
    let (minor, _) = ours.name.rsplit_once('.').unwrap();
    let named = |name: &str| Release { name: name.into(), ..ours.clone() };
    assert!(ours.clone().check().is_ok());
    assert!(named(&format!("{minor}.999")).check().is_ok());
    assert!(named(minor).check().is_ok());
    for other in ["", "x", &format!("{minor}9.0"), "999.0.0"] {
        assert!(matches!(named(other).check(), Err(Refused::Version { .. })), "{other}");
    }
    let python = Release { python: Some("3.11".into()), ..ours.clone() };
    let expected = format!("{} (protocol {}, Python 3.11) at the other end", ours.name, wire::VERSION);
    assert!(python.check().unwrap_err().to_string().contains(&expected));
}

/// In a join the versions are compared before a certificate is made.
#[test]
fn other_versions_in_a_join() {
    let host = Arc::new(HostTrust::new(by_secret(1)).unwrap());
    let (mut client, joined, _) = join_by_hand(&host, JOB, b"any");
    write_all_to(&mut client, &release_of(wire::VERSION + 1, b"9.9.9\x1b[2J"));
    assert_eq!(rest(&mut client), frame(NO, &[]));
    check_version(joined.join().unwrap().err().unwrap());

    let dial = Arc::new(DialTrust::new_client(JOB, by_secret(1)).unwrap());
    let (socket, dialler) = to_dialler(&dial, target(Kind::Join));
    let mut server = server(socket, "monarch-join/1", &self_signed());
    read_frame(&mut server);
    let (out, text, context) = label(JOB);
    let exporter = server.conn.export_keying_material(out, text, Some(&context)).unwrap();
    let mut answer = proof(&[1; 32], "worker", JOB, dial.authority().unwrap().certificate(), exporter);
    answer.extend_from_slice(&generator_key());
    write_all_to(&mut server, &frame(ANSWER, &answer));
    write_all_to(&mut server, &release_of(wire::VERSION + 1, b"9.9.9\x1b[2J"));
    assert_eq!(rest(&mut server), release());
    check_version(dialler.join().unwrap().err().unwrap());
}

#[test]
fn other_protocols_are_refused() {
    let site = crate::ends::Site::new();
    let paper = crate::ends::Paper::default();
    let tls_hello = {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let config = builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    };
    for policy in [by_secret(1), site.policy(&paper), Policy::Insecure] {
        let (name, encrypts) = (format!("{policy:?}"), !matches!(policy, Policy::Insecure));
        let host = Arc::new(HostTrust::new(policy).unwrap());
        let mut all = vec![(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "text"), (vec![0; 100], ""), (vec![0xff; 20_000], "")];
        all.push(if encrypts { (release(), "does not encrypt") } else { (tls_hello.clone(), "uses TLS") });
        if name == "Secret(Secret)" {
            all.push((tls_hello.clone(), "not a monarch process"));
        }
        for (bytes, text) in all {
            let (mut socket, accepting) = to_host(&host);
            write_all_to(&mut socket, &bytes);
            let answer = rest(&mut socket);
            let no: &[u8] = if encrypts || bytes[0] == 22 { &[21, 3, 3, 0, 2, 2, 49] } else { &[1, 0, 0] };
            assert!(answer == no || answer.is_empty(), "{name}: {answer:?}");
            match accepting.join().unwrap().err().unwrap() {
                Refused::Protocol(why) => assert!(encrypts && text == "text" || why.contains(text), "{name}: {why:?}, not {text}"),
                other => panic!("{name}: {other}"),
            }
        }
        let (socket, accepting) = to_host(&host);
        drop(socket);
        assert!(matches!(accepting.join().unwrap(), Err(Refused::Closed)), "{name}");
        // The end of one direction is no refusal: a proxy may have caused it, and the dialling side retries.
        let (mut socket, accepting) = to_host(&host);
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(rest(&mut socket), [], "{name}");
        assert!(matches!(accepting.join().unwrap(), Err(Refused::Closed)), "{name}");
    }
}

/// Two real ends with different policies.
#[test]
fn ends_that_do_not_agree_on_encryption() {
    let site = crate::ends::Site::new();
    let policies = || [by_secret(1), site.policy(&crate::ends::Paper::default()), Policy::Insecure];
    for (i, dial) in policies().into_iter().enumerate() {
        for (j, host) in policies().into_iter().enumerate() {
            if i != j {
                let text = format!("{dial:?} to {host:?}");
                let (a, b) = Pair::new(Wire::Tcp, dial.clone(), host).open(target(Kind::Join), b"");
                let (a, b) = (a.err().unwrap(), b.err().unwrap());
                assert!(!a.is_transient() && !b.is_transient(), "{text}: {a}; {b}");
            }
        }
    }
}

#[test]
fn frames_that_are_too_large() {
    let pair = Pair::same(Wire::Tcp, Policy::Insecure);
    let (fd, _other) = connect(Wire::Tcp);
    assert!(AuthHandshake::dial(fd, &pair.dial, target(Kind::Join), vec![0; MAX_HELLO + 1]).is_err());
    for frame in [frame(HELLO, &[0; MAX_HELLO + 1]), vec![0, 0, HELLO], frame(9, b""), frame(HELLO, &[1; 60_000])] {
        let (mut socket, host) = to_host(&pair.host);
        write_all_to(&mut socket, &[release(), request(1, JOB), frame].concat());
        read_release(&mut socket);
        rest(&mut socket);
        assert!(matches!(host.join().unwrap(), Err(Refused::Protocol(_))));
    }
}

/// An unauthenticated TLS session is bounded too: here it receives empty records, which are no progress.
#[test]
fn unauthenticated_flood_is_refused() {
    let host = Arc::new(HostTrust::new(by_secret(1)).unwrap());
    let (socket, accepting) = to_host(&host);
    let mut client = client(socket, "monarch-join/1", &name_of(HOST, JOB), None);
    while client.conn.is_handshaking() || client.conn.wants_write() {
        client.conn.complete_io(&mut client.sock).unwrap();
    }
    let (connection, mut socket) = client.into_parts();
    let mut seal = sealer(connection);
    let empty: Vec<u8> = (0..1000).flat_map(|_| seal()).collect();
    let sent = std::iter::repeat_with(|| std::io::Write::write(&mut socket, &empty)).take(1000).take_while(Result::is_ok).count();
    assert!(sent < 1000);
    assert!(matches!(accepting.join().unwrap(), Err(Refused::Protocol(_))));
}

/// Makes empty records of a session.
fn sealer(connection: rustls::ClientConnection) -> impl FnMut() -> Vec<u8> {
    use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let (mut number, secrets) = connection.dangerous_extract_secrets().unwrap().tx;
    let (algorithm, key, iv) = match &secrets {
        rustls::ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
        rustls::ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
        _ => panic!("another cipher"),
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap());
    let iv: [u8; 12] = iv.as_ref().try_into().unwrap();
    move || {
        let mut nonce = iv;
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(a, b)| *a ^= b);
        number += 1;
        let header = [23, 3, 3, 0, 17];
        let mut body = vec![23];
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(header), &mut body).unwrap();
        [&header[..], &body].concat()
    }
}

/// The kernel reports the user at the other end of a unix socket.
#[test]
fn another_user() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can be another user");
        return;
    }
    // Only this thread changes its user, and a pair of sockets belongs to the user that makes it.
    let (x, y) = std::thread::spawn(|| {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
        connect(Wire::Inproc)
    })
    .join()
    .unwrap();
    let pair = Pair::same(Wire::Inproc, Policy::SameUser);
    assert!(AuthHandshake::dial(x, &pair.dial, target(Kind::Join), vec![]).is_err());
    let refused = AuthHandshake::accept(y, &pair.host, "peer".into()).unwrap().drive().err().unwrap();
    assert!(matches!(refused, Refused::User(65_534)), "{refused}");
}
