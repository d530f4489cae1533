//! Frames: encoding and decoding are inverse, and other bytes are refused.

mod strategy;

use proptest::prelude::*;
use wire::cursor::DecodeError;
use wire::frame::{CONTROL, CREDIT, Head, MESSAGE, PREFIX, RAW, REPLY};
use wire::{CallId, Frame, Status};

fn length(frame: &[u8]) -> usize {
    u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize
}

proptest! {
    #[test]
    fn frames_survive_the_trip(frame in strategy::frame()) {
        let bytes = frame.encode();
        prop_assert_eq!(length(&bytes), bytes.len() - 4);
        prop_assert_eq!(Frame::decode(&bytes[4..]), Ok(frame));
    }

    #[test]
    fn frames_follow_one_another(frames in proptest::collection::vec(strategy::frame(), 0..6)) {
        let mut run = Vec::new();
        frames.iter().for_each(|f| f.put(&mut run));
        let mut rest = &run[..];
        let mut back = Vec::new();
        while !rest.is_empty() {
            let n = 4 + length(rest);
            back.push(Frame::decode(&rest[4..n]).unwrap());
            rest = &rest[n..];
        }
        prop_assert_eq!(back, frames);
    }

    /// All kinds but the raw one contain their length.
    #[test]
    fn truncated_frame_is_refused(frame in strategy::frame(), cut in any::<prop::sample::Index>()) {
        let bytes = frame.encode();
        let body = &bytes[4..];
        let short = &body[..cut.index(body.len())];
        match (Frame::decode(short), &frame) {
            (Ok(Frame::Raw(_)), Frame::Raw(_)) => {}
            (Err(DecodeError::Control), Frame::Control(_)) => {}
            (got, _) => prop_assert_eq!(got, Err(DecodeError::Truncated)),
        }
    }

    #[test]
    fn frame_with_trailing_bytes_is_refused(frame in strategy::frame(), more in 1usize..40) {
        let mut bytes = frame.encode();
        bytes.extend(std::iter::repeat_n(0, more));
        match &frame {
            Frame::Raw(_) => {}
            _ => prop_assert_eq!(Frame::decode(&bytes[4..]), Err(DecodeError::Trailing)),
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        kind in prop::sample::select(vec![0, MESSAGE, REPLY, CREDIT, CONTROL, RAW, 6, 255]),
        body in strategy::bytes(),
    ) {
        let mut bytes = vec![kind];
        bytes.extend(body);
        if let Ok(frame) = Frame::decode(&bytes) {
            // An accepted frame survives another encoding and decoding.
            prop_assert_eq!(Frame::decode(&frame.encode()[4..]), Ok(frame));
        }
    }

    #[test]
    fn damaged_frame_decodes_safely(
        frame in strategy::frame(),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = frame.encode();
        bytes.drain(..4);
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert_eq!(Frame::decode(&frame.encode()[4..]), Ok(frame));
        }
    }
}

#[test]
fn unknown_kinds_are_named() {
    assert_eq!(Frame::decode(&[0]), Err(DecodeError::Kind(0)));
    assert_eq!(Frame::decode(&[99, 1, 2]), Err(DecodeError::Kind(99)));
    assert_eq!(Frame::decode(&[]), Err(DecodeError::Truncated));
}

#[test]
fn unknown_status_is_named() {
    let reply = Frame::Reply(wire::Reply { call_id: CallId(7), rank: 0, status: Status::Ok, parts: vec![] });
    let mut bytes = reply.encode();
    bytes[PREFIX + 12] = 6;
    assert_eq!(Frame::decode(&bytes[4..]), Err(DecodeError::Tag(6)));
}

#[test]
fn method_must_be_text() {
    let mut body = vec![MESSAGE];
    Head { method: &[0xff, 0xfe], ..Head::default() }.put(&mut body, 0);
    assert_eq!(Frame::decode(&body), Err(DecodeError::Text));
}

#[test]
fn every_status_keeps_its_number() {
    for n in 0..=u8::MAX {
        match Status::from_u8(n) {
            Ok(s) => assert_eq!(s as u8, n),
            Err(e) => assert_eq!(e, DecodeError::Tag(n)),
        }
    }
}
