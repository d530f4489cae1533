//! Rings as their readers see them: many writers, overwriting, unfinished records, a killed writer.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use events::{Reader, Record, Ring, TABLE, Unit, Value, type_of};
use proptest::prelude::*;

/// `user.event`: a name and a text.
const USER: u16 = 21;
/// `queue.depth`: two numbers.
const DEPTH: u16 = 9;

fn ring(events: usize) -> (Ring, OwnedFd, Reader) {
    let (ring, fd) = Ring::create(7, events).unwrap();
    let reader = Reader::open(fd.as_raw_fd()).unwrap();
    (ring, fd, reader)
}

fn user(ring: &Ring, name: &str, text: &str) {
    ring.write(USER, &[ring.name(name.as_bytes()), ring.text(text.as_bytes())]);
}

fn texts(record: &Record) -> Vec<&str> {
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone().leak() as &str),
        _ => None,
    };
    record.fields.iter().filter_map(text).collect()
}

fn numbers(record: &Record) -> Vec<u64> {
    let number = |value: &Value| match value {
        Value::Number(n) => Some(*n),
        _ => None,
    };
    record.fields.iter().filter_map(number).collect()
}

#[test]
fn events_are_read_in_order_with_texts() {
    let (ring, _fd, mut reader) = ring(256);
    user(&ring, "loaded", "{\"rows\": 3}");
    user(&ring, "loaded", "");
    let records = reader.read(10, false);
    assert_eq!(records.iter().map(texts).collect::<Vec<_>>(), [["loaded", "{\"rows\": 3}"], ["loaded", ""]]);
    assert_eq!((records[0].number, records[1].number, reader.lost()), (0, 1, 0));
    assert!(records[0].time <= records[1].time && records[0].thread != 0);
    assert_eq!((reader.proc(), reader.pid(), reader.capacity()), (7, std::process::id(), 256));
    assert!(reader.read(10, false).is_empty());
}

#[test]
fn full_ring_overwrites_and_counts_oldest_events() {
    let (ring, _fd, mut reader) = ring(256);
    for n in 0..1000 {
        ring.write(DEPTH, &[n, n + 1]);
    }
    let records = reader.read(usize::MAX, false);
    assert_eq!((records.len(), reader.lost()), (256, 744));
    assert_eq!(numbers(&records[0]), [744, 745]);
    assert_eq!(numbers(&records[255]), [999, 1000]);
}

#[test]
fn last_events_are_read_without_the_rest() {
    let (ring, _fd, mut reader) = ring(256);
    for n in 0..100 {
        ring.write(DEPTH, &[n, 0]);
    }
    reader.skip_to_last(3);
    let last: Vec<_> = reader.read(10, true).iter().map(|r| numbers(r)[0]).collect();
    assert_eq!((last, reader.lost()), (vec![97, 98, 99], 0));
}

#[test]
fn overwritten_text_is_reported_as_lost() {
    let (ring, _fd, mut reader) = ring(1 << 14);
    let text = |n: usize| format!("{n:04}").repeat(256);
    for n in 0..2000 {
        user(&ring, "line", &text(n));
    }
    let records = reader.read(usize::MAX, false);
    assert_eq!(records.len(), 2000);
    let mut lost = 0;
    for (n, record) in records.iter().enumerate() {
        match &record.fields[1] {
            Value::Text(t) => assert_eq!(*t, text(n)),
            other => {
                assert_eq!(*other, Value::Lost);
                lost += 1;
            }
        }
    }
    assert!(lost > 0 && lost < 2000, "{lost} lost");
}

#[test]
fn names_beyond_the_table_are_kept_as_texts() {
    let (ring, _fd, mut reader) = ring(256);
    for n in 0..20_000 {
        ring.name(format!("name {n}").as_bytes());
    }
    user(&ring, "one more", "");
    user(&ring, "name 1", "");
    let records = reader.read(2, false);
    assert_eq!((texts(&records[0])[0], texts(&records[1])[0]), ("one more", "name 1"));
}

#[test]
fn records_of_many_writers_are_read_whole() {
    let (ring, _fd, mut reader) = ring(256);
    let (over, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (ring, over) = (&ring, &over);
                scope.spawn(move || {
                    let mut n = 0;
                    while !over.load(Ordering::Relaxed) {
                        // All words of a record follow from the first one.
                        let first = n * 4 + writer;
                        ring.write(8, &[first, ring.name(format!("{}", first % 97).as_bytes()), !first, first ^ 77, first, first, first]);
                        n += 1;
                    }
                })
            })
            .collect();
        while seen.load(Ordering::Relaxed) < 50_000 {
            for record in reader.read(1024, false) {
                let (n, name) = (numbers(&record), texts(&record));
                assert_eq!(n, [n[0], !n[0], n[0] ^ 77, n[0], n[0], n[0]]);
                assert_eq!(name, [format!("{}", n[0] % 97)]);
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
        over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|w| w.join().unwrap());
    });
    let rest = reader.read(usize::MAX, true).len() as u64;
    assert_eq!(seen.load(Ordering::Relaxed) + rest + reader.lost(), reader.written());
}

#[test]
fn names_added_by_many_threads_are_unique() {
    let (ring, _fd, _reader) = ring(256);
    let all: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let add = || (0..500).map(|n| ring.name(format!("mesh {n}").as_bytes())).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(all.iter().all(|numbers| *numbers == all[0]));
}

#[test]
fn events_of_a_killed_process_are_readable() {
    let (ring, _fd, mut reader) = ring(256);
    let mut pipe = [0; 2];
    // SAFETY: the child writes to the ring and to a pipe, which needs no lock of this process, and is killed.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            for n in 0..300 {
                ring.write(DEPTH, &[n, 0]);
            }
            libc::write(pipe[1], b"x".as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
        let mut byte = 0_u8;
        assert_eq!(libc::read(pipe[0], (&raw mut byte).cast(), 1), 1);
        libc::kill(child, libc::SIGKILL);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFSIGNALED(status));
    }
    let records = reader.read(usize::MAX, true);
    assert_eq!((records.len(), reader.lost()), (256, 44));
    assert_eq!(numbers(&records[255])[0], 299);
}

#[test]
fn unfinished_record_is_skipped_and_counted() {
    let (ring, fd, mut reader) = ring(256);
    ring.write(DEPTH, &[1, 0]);
    ring.write(DEPTH, &[2, 0]);
    ring.write(DEPTH, &[3, 0]);
    // As if the second writer had died in the middle: its sequence number is that of an unfinished record.
    let words = map(&fd);
    let slots = words.len() - 256 * 16;
    words[slots + 16].store(3, Ordering::Relaxed);
    let seen = |reader: &mut Reader, ended| reader.read(10, ended).iter().map(|r| numbers(r)[0]).collect::<Vec<_>>();
    assert_eq!(seen(&mut reader, false), [1]);
    let mut late = Reader::open(fd.as_raw_fd()).unwrap();
    assert_eq!((seen(&mut late, true), late.lost()), (vec![1, 3], 1));
    // A writer of the next round does not overwrite a slot that is being written.
    for n in 4..256 + 3 {
        ring.write(DEPTH, &[n, 0]);
    }
    assert_eq!(words[slots + 16].load(Ordering::Relaxed), 3);
    // Readers do not wait for it once the ring fills up behind it.
    let rest = seen(&mut reader, false);
    assert_eq!((rest.first(), reader.lost()), (Some(&3), 1));
}

#[test]
fn record_finished_late_is_not_lost() {
    let (ring, fd, mut reader) = ring(256);
    (1..4).for_each(|n| ring.write(DEPTH, &[n, 0]));
    // As if the second writer had lost its processor in the middle.
    let words = map(&fd);
    let slots = words.len() - 256 * 16;
    words[slots + 16].store(3, Ordering::Relaxed);
    let seen = |reader: &mut Reader| reader.read(10, false).iter().map(|r| numbers(r)[0]).collect::<Vec<_>>();
    assert_eq!((seen(&mut reader), seen(&mut reader), seen(&mut reader)), (vec![1], vec![], vec![]));
    words[slots + 16].store(4, Ordering::Relaxed);
    assert_eq!((seen(&mut reader), reader.lost()), (vec![2, 3], 0));
}

#[test]
fn damaged_head_counts_at_most_the_ring() {
    let (ring, fd, mut reader) = ring(256);
    let head = &map(&fd)[16];
    ring.write(DEPTH, &[1, 0]);
    assert_eq!(reader.read(10, false).len(), 1);
    for damage in [1 << 62, u64::MAX - 300, 7, u64::MAX / 2, 0] {
        head.store(damage, Ordering::Relaxed);
        reader.read(1000, true);
    }
    // Each time, at most one ring was skipped and one ring was unreadable.
    assert!(reader.lost() <= 5 * 2 * 256, "{}", reader.lost());
    // Later events of the process are read and counted.
    let (before, words) = (reader.lost(), map(&fd));
    words[words.len() - 256 * 16..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    for n in 0..300 {
        ring.write(DEPTH, &[n, 0]);
    }
    assert_eq!((reader.read(1000, false).len() as u64, reader.lost() - before), (256, 44));
}

fn map(fd: &OwnedFd) -> &'static [AtomicU64] {
    // SAFETY: a shared mapping of the whole ring, never unmapped.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd.as_raw_fd(), &raw mut found), 0);
        let len = found.st_size as usize;
        let p = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0);
        assert_ne!(p, libc::MAP_FAILED);
        std::slice::from_raw_parts(p.cast(), len / 8)
    }
}

#[test]
fn something_else_is_no_ring() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(Reader::open(file.as_raw_fd()).err().unwrap().kind(), std::io::ErrorKind::InvalidData);
    let (_ring, fd, _reader) = ring(256);
    map(&fd)[0].store(1, Ordering::Relaxed);
    assert!(Reader::open(fd.as_raw_fd()).is_err());
}

#[test]
fn table_has_no_gaps_and_short_rows() {
    for (i, t) in TABLE.iter().enumerate() {
        assert_eq!((usize::from(t.number), type_of(t.number).unwrap().name), (i + 1, t.name));
        assert!(t.fields.len() <= 10, "{}", t.name);
        assert!(t.about.ends_with('.') && t.about.len() < 120, "{}", t.about);
    }
    assert!(type_of(0).is_none() && type_of(TABLE.len() as u16 + 1).is_none());
    let names: std::collections::HashSet<_> = TABLE.iter().map(|t| t.name).collect();
    assert_eq!(names.len(), TABLE.len());
    assert!(matches!(TABLE[usize::from(USER) - 1].fields[0].unit, Unit::Name));
}

proptest! {
    #[test]
    fn any_name_and_any_text_come_back(name in ".{1,80}", text in ".{0,300}") {
        let (ring, _fd, mut reader) = ring(256);
        user(&ring, &name, &text);
        user(&ring, &name, &text);
        for record in reader.read(2, false) {
            prop_assert_eq!(texts(&record), [&name, &text]);
        }
    }

    #[test]
    fn any_damage_is_survived(damage in proptest::collection::vec((0_usize..4000, any::<u64>()), 1..20)) {
        let (ring, fd, mut reader) = ring(256);
        user(&ring, "name", "text");
        let words = map(&fd);
        for (at, value) in damage {
            // All words but the magic number, the capacity and the size, which are checked when the ring is opened.
            words[4 + at * 16 % (words.len() - 4)].store(value, Ordering::Relaxed);
        }
        let read = reader.read(1000, true).len() as u64;
        prop_assert!(read + reader.lost() <= 2 * 256);
    }
}
