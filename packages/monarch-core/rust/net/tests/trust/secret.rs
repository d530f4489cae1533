//! Secret files must be private, and secrets are never printed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use net::trust::Secret;

#[test]
fn files() {
    let dir = crate::ends::tempdir();
    let path = dir.0.join("secret");
    let write = |bytes: &[u8], mode| {
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o600, 0o400] {
        write(b"  0123456789abcdef0123456789abcdef\n", mode);
        assert!(Secret::from_file(&path).is_ok());
    }
    let cases: [(&[u8], u32, &str); 8] = [
        (b"0123456789abcdef", 0o640, "others may use it (mode 0640)"),
        (b"0123456789abcdef", 0o604, "others may use it (mode 0604)"),
        (b"0123456789abcdef", 0o620, "others may use it (mode 0620)"),
        (b"0123456789abcdef", 0o644, "others may use it (mode 0644)"),
        (b"", 0o600, "is empty"),
        (b" \n", 0o600, "is empty"),
        (b"0123456789abcde\n", 0o600, "the job secret has 15 bytes, at least 16 are needed"),
        (&[b'x'; 5000], 0o600, "has 5000 bytes"),
    ];
    for (bytes, mode, text) in cases {
        write(bytes, mode);
        let e = Secret::from_file(&path).err().unwrap().to_string();
        assert!(e.starts_with(&format!("secret file {}: {text}", path.display())), "{e}");
        assert!(!e.contains("0123456789"));
    }
    let e = Secret::from_file(&dir.0).err().unwrap().to_string();
    assert!(e.ends_with("not a regular file"), "{e}");
    let e = Secret::from_file(&dir.0.join("none")).err().unwrap().to_string();
    assert!(e.contains("none: No such file"), "{e}");
}

#[test]
fn secret_file_of_another_user_is_refused() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let dir = crate::ends::tempdir();
    let path = dir.0.join("secret");
    fs::write(&path, [7; 32]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    let e = Secret::from_file(&path).err().unwrap().to_string();
    assert!(e.contains("belongs to user 65534, not to user 0"), "{e}");
}

#[test]
fn secret_is_not_shown() {
    let secret = Secret::from_bytes(b"open sesame, open sesame").unwrap();
    assert_eq!(format!("{secret:?}"), "Secret");
    assert!(Secret::from_bytes(&[1; 15]).err().unwrap().to_string().contains("at least 16"));
}
