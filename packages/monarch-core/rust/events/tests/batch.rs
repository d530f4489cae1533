//! Batches of events: records and columns agree, and lost texts are marked.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use events::{Batch, Columns, Reader, Ring, Value};

/// `user.event`: a name and a text.
const USER: u16 = 21;
/// `queue.depth`: two numbers.
const DEPTH: u16 = 9;
/// `metric.update`: names, a float, a text.
const METRIC: u16 = 22;
/// `mesh.made`: it got two fields later.
const MADE: u16 = 25;
/// Bytes of an event in a ring.
const SLOT: u64 = 128;

fn ring(events: usize) -> (Ring, OwnedFd, Reader) {
    let (ring, fd) = Ring::create(7, events).unwrap();
    let reader = Reader::open(fd.as_raw_fd()).unwrap();
    (ring, fd, reader)
}

fn column<const N: usize>(of: &Columns, name: &str) -> Vec<[u8; N]> {
    let found = of.columns().iter().find(|c| c.name == name).unwrap();
    assert_eq!((found.offset % 64, found.bytes), (0, of.rows * N));
    of.bytes()[found.offset..][..found.bytes].chunks_exact(N).map(|b| b.try_into().unwrap()).collect()
}

fn words(of: &Columns, name: &str) -> Vec<u64> {
    column(of, name).into_iter().map(u64::from_ne_bytes).collect()
}

fn texts(batch: &Batch, of: &Columns, name: &str) -> Vec<Option<String>> {
    let numbers = column(of, name).into_iter().map(i32::from_ne_bytes);
    numbers.map(|n| batch.texts().get(n as i64 as u64)).collect()
}

#[test]
fn columns_have_each_types_events_in_order() {
    let (ring, _fd, mut reader) = ring(256);
    for n in 0..3 {
        ring.write(DEPTH, &[n, 10 * n]);
        ring.write(USER, &[ring.name(b"loaded"), ring.text(format!("{{\"rows\": {n}}}").as_bytes())]);
    }
    ring.write(METRIC, &[ring.name(b"train"), ring.name(b"loss"), ring.name(b"gauge"), 0.25_f64.to_bits(), 0]);
    let batch = reader.drain(100, false);
    let all = batch.columns();
    assert_eq!(all.iter().map(|c| (c.kind, c.rows)).collect::<Vec<_>>(), [(DEPTH, 3), (USER, 3), (METRIC, 1)]);
    assert_eq!((words(&all[0], "number"), words(&all[0], "depth")), (vec![0, 2, 4], vec![0, 10, 20]));
    assert_eq!(texts(&batch, &all[1], "name"), vec![Some("loaded".to_owned()); 3]);
    assert_eq!(texts(&batch, &all[1], "fields")[2].as_deref(), Some("{\"rows\": 2}"));
    assert_eq!(column(&all[2], "amount"), [0.25_f64.to_ne_bytes()]);
    assert_eq!(texts(&batch, &all[2], "attributes"), [Some(String::new())]);
    // A name is one text of the batch, and number 0 is the empty text.
    assert_eq!(batch.texts().offsets().len(), 2 + 1 + 3 + 3);
    let records = batch.decode();
    assert_eq!(records.iter().map(|r| r.time).collect::<Vec<_>>()[..2], [words(&all[0], "time")[0], words(&all[1], "time")[0]]);
    assert_eq!(u32::from_ne_bytes(column(&all[0], "thread")[0]), records[0].thread);
    assert_eq!(column::<24>(&all[0], "trace").len(), 3);
}

#[test]
fn overwritten_text_is_minus_one_in_its_column() {
    let (ring, _fd, mut reader) = ring(256);
    let long = "x".repeat(4000);
    for _ in 0..200 {
        ring.write(USER, &[ring.name(b"much"), ring.text(long.as_bytes())]);
    }
    let batch = reader.drain(1000, false);
    let of = &batch.columns()[0];
    assert_eq!((of.rows, column::<4>(of, "fields")[0]), (200, (-1_i32).to_ne_bytes()));
    assert_eq!(texts(&batch, of, "fields")[199], Some(long));
    assert_eq!(batch.decode()[0].fields[1], Value::Lost);
}

#[test]
fn unknown_event_type_has_the_common_columns() {
    let (ring, _fd, mut reader) = ring(256);
    ring.write(999, &[1, 2]);
    let all = reader.drain(10, false).columns();
    let names: Vec<_> = all[0].columns().iter().map(|c| c.name).collect();
    assert_eq!((all[0].kind, names), (999, vec!["number", "time", "thread", "trace"]));
}

#[test]
fn batch_has_a_limit_and_the_next_continues() {
    let (ring, _fd, mut reader) = ring(256);
    (0..10).for_each(|n| ring.write(DEPTH, &[n, 0]));
    let (first, rest) = (reader.drain(7, false), reader.drain(7, false));
    assert_eq!((first.len(), rest.len(), reader.drain(7, false).is_empty()), (7, 3, true));
    assert_eq!(words(&rest.columns()[0], "mesh"), [7, 8, 9]);
}

#[test]
fn field_unknown_to_the_writer_is_empty() {
    let (ring, fd, mut reader) = ring(256);
    let made = [1, 2, ring.name(b"Trainer"), ring.name(b"trainer"), ring.name(b"<root>"), ring.text(b"{}"), 7];
    let full = [11, 12, 13, 14, 15, 16, 17, 18, 19, ring.name(b"left of another event")];
    (0..256).for_each(|_| ring.write(999, &full));
    ring.write(MADE, &made);
    ring.write(MADE, &made);
    // As a process that counted no fields wrote it.
    let file = File::from(fd);
    let kind = file.metadata().unwrap().len() - 256 * SLOT + 2 * 8;
    file.write_all_at(&u64::from(MADE).to_ne_bytes(), kind).unwrap();
    reader.skip_to_last(2);
    let batch = reader.drain(10, false);
    let of = &batch.columns()[0];
    assert_eq!((of.kind, words(of, "age"), words(of, "offset")), (MADE, vec![7, 7], vec![0, 0]));
    assert_eq!(texts(&batch, of, "dims"), vec![Some(String::new()); 2]);
}
