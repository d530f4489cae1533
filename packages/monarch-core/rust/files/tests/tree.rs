//! Listings and digests of a real directory.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;

use files::listing::RECORD;
use files::{digest_files, list_directories};

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("monarch-files-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn listing(&self) -> Vec<u8> {
        list_directories(std::slice::from_ref(&self.0)).remove(0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn number(listing: &[u8], entry: usize, field: usize) -> u64 {
    let at = 4 + entry * RECORD + 16 + field * 8;
    u64::from_le_bytes(listing[at..at + 8].try_into().unwrap())
}

#[test]
fn listing_has_every_entry_with_its_attributes() {
    let folder = Folder::new("entries");
    let names: [&[u8]; 4] = [b"a", b"b\xff\n", b"dir", b"link"];
    fs::write(folder.0.join("a"), b"12345").unwrap();
    fs::write(folder.0.join(std::ffi::OsStr::from_bytes(names[1])), b"").unwrap();
    fs::create_dir(folder.0.join("dir")).unwrap();
    symlink("nowhere", folder.0.join("link")).unwrap();
    let listing = folder.listing();
    assert_eq!(u32::from_le_bytes(listing[..4].try_into().unwrap()), 4);
    let found: Vec<&[u8]> = listing[4 + 4 * RECORD..].split_inclusive(|b| *b == 0).collect();
    let expected: Vec<Vec<u8>> = names.iter().map(|name| [name, &[0][..]].concat()).collect();
    assert_eq!(found, expected);
    let meta = fs::metadata(folder.0.join("a")).unwrap();
    let mtime = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
    assert_eq!([0, 1, 2, 4].map(|field| number(&listing, 0, field)), [meta.dev(), meta.ino(), 5, mtime as u64]);
    assert_eq!([2, 5].map(|field| number(&listing, 2, field)), [0, 0], "size and ctime of a directory");
}

#[test]
fn listing_is_equal_until_something_changes() {
    let folder = Folder::new("equal");
    fs::create_dir(folder.0.join("dir")).unwrap();
    fs::write(folder.0.join("file"), b"1").unwrap();
    let before = folder.listing();
    assert_eq!(before, folder.listing());
    fs::write(folder.0.join("file"), b"22").unwrap();
    assert_ne!(before, folder.listing());
}

#[test]
fn listings_of_many_directories_come_in_their_order() {
    let folder = Folder::new("many");
    let paths: Vec<PathBuf> = (0..300).map(|n| folder.0.join(n.to_string())).collect();
    for (n, path) in paths.iter().enumerate().filter(|(n, _)| n % 7 != 0) {
        fs::create_dir(path).unwrap();
        fs::write(path.join(format!("file{n}")), b"").unwrap();
    }
    for (n, listing) in list_directories(&paths).into_iter().enumerate() {
        match listing {
            Ok(listing) => assert!(listing.ends_with(format!("file{n}\0").as_bytes())),
            Err(e) => assert!(n % 7 == 0 && e.raw_os_error() == Some(libc::ENOENT)),
        }
    }
}

#[test]
fn links_and_files_are_no_directories() {
    let folder = Folder::new("links");
    symlink(&folder.0, folder.0.join("link")).unwrap();
    File::create(folder.0.join("file")).unwrap();
    let found = list_directories(&[folder.0.join("link"), folder.0.join("file")]);
    let errors: Vec<_> = found.into_iter().map(|listing| listing.unwrap_err().raw_os_error()).collect();
    assert_eq!(errors, [Some(libc::ENOTDIR), Some(libc::ENOTDIR)]);
}

#[test]
fn digests_are_those_of_the_pieces() {
    let folder = Folder::new("digests");
    let data: Vec<u8> = (0..700_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    let sizes = [0, 1, 99_999, 100_000, 100_001, 700_000];
    let paths: Vec<PathBuf> = sizes.iter().map(|size| folder.0.join(size.to_string())).collect();
    for (path, size) in paths.iter().zip(sizes) {
        fs::write(path, &data[..size]).unwrap();
    }
    for (found, size) in digest_files(&paths, 100_000).into_iter().zip(sizes) {
        let found = found.unwrap();
        let mut expected: Vec<u8> = data[..size].chunks(100_000).flat_map(files::digest::digest).collect();
        if size == 0 {
            expected = files::digest::digest(b"").to_vec();
        }
        assert!(found.settled && found.digests == expected, "{size}");
    }
    for (found, size) in digest_files(&paths, 0).into_iter().zip(sizes) {
        assert_eq!(found.unwrap().digests, files::digest::digest(&data[..size]));
    }
}

#[test]
fn file_changed_during_a_read_is_reported() {
    let folder = Folder::new("changes");
    let path = folder.0.join("file");
    fs::write(&path, vec![0; 4 << 20]).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all(b"x").unwrap();
            }
        });
        for _ in 0..20 {
            let found = digest_files(std::slice::from_ref(&path), 0).remove(0).unwrap();
            let size = u64::from_le_bytes(found.record[32..40].try_into().unwrap());
            if found.settled {
                let data = fs::read(&path).unwrap();
                assert_eq!(found.digests, files::digest::digest(&data[..size as usize]));
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn pipes_and_directories_have_no_digest() {
    let folder = Folder::new("pipes");
    let pipe = folder.0.join("pipe");
    let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let found = digest_files(&[pipe, folder.0.clone(), folder.0.join("none")], 0);
    assert!(found.into_iter().all(|digest| digest.is_err()));
}
