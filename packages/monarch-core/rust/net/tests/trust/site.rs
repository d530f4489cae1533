//! Certificates of the site: both ends send one, and the host's must contain the name that was dialled.

use crate::ends::{Pair, Paper, Site, Wire, secret, target};
use net::trust::{Kind, Policy, Refused, SitePki, Subject, Target};
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

fn why(refused: Refused) -> String {
    match refused {
        Refused::Certificate(why) => why,
        other => panic!("{other}"),
    }
}

#[test]
fn names_and_addresses() {
    let site = Site::new();
    let host = Paper { names: &["node7.site", "*.cluster.site", "127.0.0.1", "::1"], ..Paper::default() };
    let pair = Pair::new(Wire::Tcp, site.policy(&Paper { names: &["alice"], ..Paper::default() }), site.policy(&host));
    for (name, good) in [
        ("node7.site", true),
        ("NODE7.site", true),
        ("a.cluster.site", true),
        ("127.0.0.1", true),
        ("::1", true),
        ("node8.site", false),
        ("cluster.site", false),
        ("127.0.0.2", false),
    ] {
        let (a, b) = pair.open(Target { kind: Kind::Join, host: 1, name: name.into() }, b"");
        if good {
            assert_eq!(b.unwrap().subject, Subject::Site("alice".into()));
            assert!(a.unwrap().peer.starts_with(name));
        } else {
            let why = why(a.err().unwrap());
            assert!(why.starts_with("name mismatch: for ") && why.ends_with(&format!("not for {name}")), "{why}");
            assert!(matches!(b, Err(Refused::Denied(_))));
        }
    }
    let (fd, _other) = crate::ends::connect(Wire::Tcp);
    let target = Target { kind: Kind::Join, host: 1, name: "no name".into() };
    assert!(net::trust::AuthHandshake::dial(fd, &pair.dial, target, vec![]).is_err());
}

#[test]
fn chains_that_are_refused() {
    let (site, other) = (Site::new(), Site::new());
    let good = Paper::default;
    let bad = [
        ("expired 2 days ago", Paper { days: (-9, -2), ..good() }, Paper { days: (-9, -2), ..good() }),
        ("not valid before", Paper { days: (2, 9), ..good() }, Paper { days: (2, 9), ..good() }),
        ("not for this use", Paper { usages: &[ClientAuth], ..good() }, Paper { usages: &[ServerAuth], ..good() }),
    ];
    for (text, host, client) in bad {
        let (a, b) = Pair::new(Wire::Tcp, site.policy(&good()), site.policy(&host)).open(target(Kind::Join), b"");
        assert!(why(a.err().unwrap()).starts_with(text));
        assert!(matches!(b, Err(Refused::Denied(_))));
        let (a, b) = Pair::new(Wire::Tcp, site.policy(&client), site.policy(&good())).open(target(Kind::Join), b"");
        assert!(why(b.err().unwrap()).starts_with(text));
        assert!(matches!(a, Err(Refused::Denied(_))));
    }
    let (a, b) = Pair::new(Wire::Tcp, site.policy(&good()), other.policy(&good())).open(target(Kind::Join), b"");
    assert_eq!(why(a.err().unwrap()), "unknown issuer");
    assert!(matches!(b, Err(Refused::Denied(_))));
    // A client that trusts both authorities is still unknown to the host.
    let both = SitePki::from_pem(site.issue(&good()).as_bytes(), (site.ca.clone() + &other.ca).as_bytes()).unwrap();
    let (a, b) = Pair::new(Wire::Tcp, Policy::Site(both), other.policy(&good())).open(target(Kind::Join), b"");
    assert_eq!(why(b.err().unwrap()), "unknown issuer");
    assert!(matches!(a, Err(Refused::Denied(_))));
}

#[test]
fn mismatched_key_and_certificate_are_refused() {
    let (site, other) = (Site::new(), Site::new());
    let mine = site.issue(&Paper::default());
    let theirs = other.issue(&Paper::default());
    let (key, certificate) = mine.split_at(mine.find("-----BEGIN CERT").unwrap());
    let foreign = &theirs[theirs.find("-----BEGIN CERT").unwrap()..];
    let cases = [
        (String::new(), site.ca.clone(), "no private key"),
        (certificate.to_owned(), site.ca.clone(), "no private key"),
        (key.to_owned(), site.ca.clone(), "no certificate"),
        (format!("{key}{foreign}"), site.ca.clone(), "key and certificate of private_key"),
        (mine.clone(), String::new(), "no certificate in the PEM of ca"),
        (mine.clone(), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(), "a certificate of ca"),
    ];
    for (private_key, ca, text) in cases {
        let e = SitePki::from_pem(private_key.as_bytes(), ca.as_bytes()).err().unwrap().to_string();
        assert!(e.starts_with(text), "{e:?}, not {text}");
    }
    let policy = site.policy(&Paper::default());
    assert_eq!(format!("{policy:?} {:?}", Policy::Secret(secret(1))), "Site(SitePki) Secret(Secret)");
}
