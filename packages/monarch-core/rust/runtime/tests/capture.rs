//! Files with the output of procs, on real disks, also on full ones.

mod folder;

use std::fs::{DirBuilder, Permissions, create_dir, read_to_string, remove_file, set_permissions, write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use folder::Folder;
use runtime::agent::capture::{Capture, CaptureFile};

const HANG: Duration = Duration::from_secs(30);

/// The path of a file in directories that exist and are private.
fn private(folder: &Folder) -> PathBuf {
    let mesh = folder.0.join("job/mesh");
    DirBuilder::new().recursive(true).mode(0o700).create(&mesh).unwrap();
    mesh.join("0.stdout")
}

/// The error of a write that is refused. No file is made in the directory of the mesh.
fn refusal(folder: &Folder) -> String {
    let error = CaptureFile::new(folder.0.join("job/mesh/0.stdout")).append(b"secret\n").unwrap_err();
    assert!(!folder.0.join("job/mesh/0.stdout").exists());
    error.to_string()
}

#[test]
fn directory_of_another_user_is_refused() {
    // SAFETY: the call has no pointers.
    if unsafe { libc::geteuid() } != 0 {
        return; // only root can give a directory away
    }
    for level in ["job", "job/mesh"] {
        let folder = Folder::new(&format!("foreign-{}", level.len()));
        private(&folder);
        std::os::unix::fs::chown(folder.0.join(level), Some(12345), None).unwrap();
        let text = refusal(&folder);
        assert_eq!(text, format!("{} belongs to user 12345, not to user 0", folder.0.join(level).display()));
    }
}

#[test]
fn nothing_is_made_inside_a_refused_directory() {
    let folder = Folder::new("inside");
    create_dir(folder.0.join("job")).unwrap();
    set_permissions(folder.0.join("job"), Permissions::from_mode(0o777)).unwrap();
    let text = refusal(&folder);
    assert_eq!(text, format!("{} can be written by other users (mode 777)", folder.0.join("job").display()));
    assert!(!folder.0.join("job/mesh").exists());
}

#[test]
fn symbolic_link_as_directory_is_refused() {
    let folder = Folder::new("linked");
    create_dir(folder.0.join("elsewhere")).unwrap();
    symlink("elsewhere", folder.0.join("job")).unwrap();
    assert_eq!(refusal(&folder), format!("{} is a symbolic link", folder.0.join("job").display()));
    assert!(!folder.0.join("elsewhere/mesh").exists());
}

#[test]
fn long_file_is_rotated_at_line_ends() {
    let folder = Folder::new("rotated");
    let path = folder.0.join("job/mesh/0.stdout");
    let file = CaptureFile::bounded(path.clone(), 10, 2);
    for text in ["one\ntwo\nthr", "ee\n", "four\nfive\n", "six\nseven\n", "eight\n"] {
        file.append(text.as_bytes()).unwrap();
    }
    let read = |name: &str| read_to_string(path.with_file_name(name)).ok();
    assert_eq!(read("0.stdout").unwrap(), "eight\n");
    assert_eq!(read("0.stdout.3").unwrap(), "six\nseven\n");
    assert_eq!(read("0.stdout.2").unwrap(), "four\nfive\n");
    assert_eq!(read("0.stdout.1"), None);
}

#[test]
fn line_without_an_end_is_cut() {
    let folder = Folder::new("endless");
    let file = CaptureFile::bounded(folder.0.join("job/mesh/0.stdout"), 10, 5);
    for _ in 0..4 {
        file.append(b"xxxxxxxx").unwrap();
    }
    assert_eq!(read_to_string(folder.0.join("job/mesh/0.stdout.1")).unwrap().len(), 24);
    assert_eq!(read_to_string(folder.0.join("job/mesh/0.stdout")).unwrap().len(), 8);
}

/// A directory blocks the file, and is removed: the number of lost bytes is written at the place where they are missing.
#[test]
fn writing_goes_on_when_it_is_possible_again() {
    let folder = Folder::new("blocked");
    let blocked = folder.0.join("logs");
    write(&blocked, "a file, not a folder").unwrap();
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let theirs = reported.clone();
    let capture = Capture::new(move |text| theirs.lock().unwrap().push(text));
    let file = Arc::new(CaptureFile::new(blocked.join("job/mesh/0.stdout")));
    for text in ["lost\n", "too\n"] {
        capture.push(&file, text.as_bytes(), true);
    }
    capture.flush(Instant::now() + HANG);
    let texts = reported.lock().unwrap().clone();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("logs/job/mesh/0.stdout") && texts[0].contains("(os error 20)"), "{texts:?}");
    remove_file(&blocked).unwrap();
    capture.push(&file, b"kept\n", true);
    capture.flush(Instant::now() + HANG);
    let text = read_to_string(file.path()).unwrap();
    assert_eq!(text, "[monarch: 9 bytes are missing here: Not a directory (os error 20)]\nkept\n");
}

#[test]
fn full_disk_is_an_error() {
    let folder = Folder::new("full");
    let path = private(&folder);
    symlink("/dev/full", &path).unwrap();
    let file = CaptureFile::new(path);
    let error = file.append(b"nowhere to go\n").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}

/// A pipe that is not read stands for a disk that hangs: a process that prints is delayed once, for a bounded time, and then loses lines.
#[test]
fn hanging_disk_does_not_block_output() {
    let folder = Folder::new("hanging");
    let path = private(&folder);
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the pointer is that of a string with a terminating zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // The pipe is open for reading, but not read.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let theirs = reported.clone();
    let capture = Capture::new(move |text| theirs.lock().unwrap().push(text));
    let file = Arc::new(CaptureFile::new(path));
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..40 {
        capture.push(&file, &chunk, true);
    }
    let texts = reported.lock().unwrap().clone();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("hanging/job/mesh/0.stdout"), "{texts:?}");
    // The disk still hangs, and a flush ends all the same.
    capture.flush(Instant::now() + Duration::from_millis(10));
    drop(reader);
}
