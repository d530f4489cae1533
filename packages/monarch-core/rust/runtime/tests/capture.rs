//! Files with what procs print, on real disks, full ones too.

mod folder;

use std::fs::{read_to_string, remove_file, write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use folder::Folder;
use runtime::capture::{Capture, CaptureFile};

const HANG: Duration = Duration::from_secs(30);

#[test]
fn a_long_file_is_cut_at_line_ends_and_old_pieces_go() {
    let folder = Folder::new("rotated");
    let path = folder.0.join("0.stdout");
    let file = CaptureFile::bounded(path.clone(), 10, 2);
    for text in ["one\ntwo\nthr", "ee\n", "four\nfive\n", "six\nseven\n", "eight\n"] {
        file.append(text.as_bytes()).unwrap();
    }
    let read = |name: &str| read_to_string(folder.0.join(name)).ok();
    assert_eq!(read("0.stdout").unwrap(), "eight\n");
    assert_eq!(read("0.stdout.3").unwrap(), "six\nseven\n");
    assert_eq!(read("0.stdout.2").unwrap(), "four\nfive\n");
    assert_eq!(read("0.stdout.1"), None);
}

#[test]
fn a_line_without_an_end_is_cut_somewhere() {
    let folder = Folder::new("endless");
    let file = CaptureFile::bounded(folder.0.join("0.stdout"), 10, 5);
    for _ in 0..4 {
        file.append(b"xxxxxxxx").unwrap();
    }
    assert_eq!(read_to_string(folder.0.join("0.stdout.1")).unwrap().len(), 24);
    assert_eq!(read_to_string(folder.0.join("0.stdout")).unwrap().len(), 8);
}

/// Something that is in the way, and goes: what was lost is said where it is missing.
#[test]
fn writing_goes_on_when_it_is_possible_again() {
    let folder = Folder::new("blocked");
    let blocked = folder.0.join("logs");
    write(&blocked, "a file, not a folder").unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let theirs = told.clone();
    let capture = Capture::new(move |text| theirs.lock().unwrap().push(text));
    let file = Arc::new(CaptureFile::new(blocked.join("mesh/0.stdout")));
    for text in ["lost\n", "too\n"] {
        capture.push(&file, text.as_bytes(), true);
    }
    capture.flush(Instant::now() + HANG);
    let said = told.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("logs/mesh/0.stdout") && said[0].contains("(os error 20)"), "{said:?}");
    remove_file(&blocked).unwrap();
    capture.push(&file, b"kept\n", true);
    capture.flush(Instant::now() + HANG);
    let text = read_to_string(file.path()).unwrap();
    assert_eq!(text, "[monarch: 9 bytes are missing here: Not a directory (os error 20)]\nkept\n");
}

#[test]
fn a_disk_that_is_full() {
    let file = CaptureFile::new("/dev/full".into());
    let error = file.append(b"nowhere to go\n").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
}

/// A pipe that nobody reads stands for a disk that hangs: who prints is held up once, for a bounded time, and then loses lines.
#[test]
fn a_disk_that_hangs_does_not_hold_up_who_prints() {
    let folder = Folder::new("hanging");
    let path = folder.0.join("0.stdout");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a string with its end.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // Open for reading, and not read from.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let theirs = told.clone();
    let capture = Capture::new(move |text| theirs.lock().unwrap().push(text));
    let file = Arc::new(CaptureFile::new(path));
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..40 {
        capture.push(&file, &chunk, true);
    }
    let said = told.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("hanging/0.stdout"), "{said:?}");
    // It hangs still, and a flush ends all the same.
    capture.flush(Instant::now() + Duration::from_millis(10));
    drop(reader);
}
