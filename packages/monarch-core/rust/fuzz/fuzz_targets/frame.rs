//! The fuzz target of frames: decoding never panics, and an accepted frame survives a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Frame;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(frame) = Frame::decode(bytes) {
        assert_eq!(Frame::decode(&frame.encode()[4..]), Ok(frame));
    }
});
