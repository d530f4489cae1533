//! Control messages: postcard, whole.

mod strategy;

use proptest::prelude::*;
use wire::cursor::DecodeError;
use wire::frame::CONTROL;
use wire::{Control, Frame};

proptest! {
    #[test]
    fn control_messages_survive_the_trip(control in strategy::control()) {
        prop_assert_eq!(postcard::from_bytes::<Control>(&control.encode()), Ok(control));
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_decoded(mut body in strategy::bytes()) {
        body.insert(0, CONTROL);
        match Frame::decode(&body) {
            Ok(Frame::Control(c)) => prop_assert_eq!(postcard::from_bytes::<Control>(&c.encode()), Ok(c)),
            Ok(other) => prop_assert!(false, "{:?}", other),
            Err(e) => prop_assert!(matches!(e, DecodeError::Control | DecodeError::Trailing)),
        }
    }
}

#[test]
fn unknown_message_is_refused() {
    assert_eq!(Frame::decode(&[CONTROL, 0x7f]), Err(DecodeError::Control));
    assert_eq!(Frame::decode(&[CONTROL]), Err(DecodeError::Control));
}
