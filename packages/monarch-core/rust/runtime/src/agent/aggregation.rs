//! Lines that are equal up to numbers, counted instead of shown.
//!
//! A window begins with the first line that arrives while nothing is counted, and ends `window` later. A line is thus shown at most that
//! much after it was printed, and a mesh that prints nothing has no timer. The caller gives the time, and writes the reports. Memory is
//! bounded: a window full of different lines ends early.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Limit of the bytes of samples and keys that one window holds.
const ROOM: usize = 512 << 10;
/// The mark for a number in a key. It is no byte of a text in UTF-8.
const NUMBER: u8 = 0xff;

/// The lines of a window that are equal up to numbers.
struct Kind {
    console: libc::c_int,
    count: u64,
    /// The first of these lines, with the prefix of its proc.
    sample: Vec<u8>,
}

/// A console, and the text to write to it.
pub type Report = (libc::c_int, Vec<u8>);

/// The counts of one window. A group of streams owns it.
pub struct Aggregation {
    window: Duration,
    /// When the present window ends; none without a window.
    due: Option<Instant>,
    kinds: Vec<Kind>,
    /// The place in `kinds`, by console and line without numbers.
    index: HashMap<Vec<u8>, usize>,
    /// The bytes of samples and keys in this window.
    held: usize,
    /// Scratch space for the key of the present line.
    key: Vec<u8>,
}

impl Aggregation {
    pub fn new(window: Duration) -> Self {
        Aggregation { window, due: None, kinds: Vec::new(), index: HashMap::new(), held: 0, key: Vec::new() }
    }

    /// Counts a line. The first line begins a window.
    pub fn add(&mut self, console: libc::c_int, prefix: &[u8], line: &[u8], now: Instant) {
        self.key.clear();
        self.key.extend_from_slice(&console.to_le_bytes());
        without_numbers(line, &mut self.key);
        match self.index.get(&self.key) {
            Some(i) => self.kinds[*i].count += 1,
            None => {
                let sample = [prefix, line].concat();
                self.held += sample.len() + self.key.len();
                self.index.insert(self.key.clone(), self.kinds.len());
                self.kinds.push(Kind { console, count: 1, sample });
            }
        }
        let end = now + self.window;
        self.due.get_or_insert(end);
    }

    /// When the window ends; none without a window.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The window holds its limit of bytes: the caller has to take the reports.
    pub fn is_full(&self) -> bool {
        self.held >= ROOM
    }

    /// The reports of the window if it is over; else none.
    pub fn take_due(&mut self, now: Instant) -> Vec<Report> {
        if self.due.is_some_and(|due| due <= now) { self.take() } else { Vec::new() }
    }

    /// Ends the window: one line for each kind, in the order of their first lines.
    pub fn take(&mut self) -> Vec<Report> {
        self.due = None;
        self.held = 0;
        self.index.clear();
        let mut reports: Vec<Report> = Vec::new();
        for kind in self.kinds.drain(..) {
            let place = reports.iter().position(|(console, _)| *console == kind.console).unwrap_or_else(|| {
                reports.push((kind.console, Vec::new()));
                reports.len() - 1
            });
            let text = &mut reports[place].1;
            text.extend_from_slice(format!("[{} similar log lines] ", kind.count).as_bytes());
            text.extend_from_slice(&kind.sample);
            text.push(b'\n');
        }
        reports
    }
}

/// Appends the line with one mark for each number: digits with sign, fraction and exponent, or hexadecimal digits after `0x`.
pub fn without_numbers(line: &[u8], out: &mut Vec<u8>) {
    let mut i = 0;
    while i < line.len() {
        let after_word = i > 0 && (line[i - 1].is_ascii_alphanumeric() || line[i - 1] == b'_');
        let signed = matches!(line[i], b'-' | b'+') && !after_word;
        let start = i + usize::from(signed);
        match number(&line[start..], after_word) {
            0 => {
                out.push(line[i]);
                i += 1;
            }
            length => {
                out.push(NUMBER);
                i = start + length;
            }
        }
    }
}

/// The length of the number at the start of the text; 0 without one.
fn number(text: &[u8], after_word: bool) -> usize {
    let digits = |from: usize| text[from.min(text.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(0);
    if whole == 0 {
        return 0;
    }
    if !after_word && text[0] == b'0' && whole == 1 && matches!(text.get(1), Some(b'x' | b'X')) {
        let hex = text[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if hex > 0 {
            return 2 + hex;
        }
    }
    let mut length = whole;
    if text.get(length) == Some(&b'.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    if matches!(text.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(length + 1), Some(b'-' | b'+')));
        let exponent = digits(length + 1 + sign);
        let end = length + 1 + sign + exponent;
        if exponent > 0 && !text.get(end).is_some_and(u8::is_ascii_alphabetic) {
            length = end;
        }
    }
    length
}
