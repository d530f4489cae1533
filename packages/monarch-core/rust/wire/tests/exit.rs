//! Exit reasons travel unchanged, alone and inside a control message.

mod strategy;

use proptest::prelude::*;
use wire::exit::ProcEnd;
use wire::{Control, ExitReason, Frame, ProcUid};

proptest! {
    #[test]
    fn reasons_survive_the_trip(reason in strategy::exit_reason()) {
        let bytes = postcard::to_stdvec(&reason).unwrap();
        prop_assert_eq!(postcard::from_bytes::<ExitReason>(&bytes), Ok(reason));
    }

    #[test]
    fn an_end_is_the_same_in_a_reply_and_in_a_frame(end in strategy::proc_end()) {
        let bytes = postcard::to_stdvec(&end).unwrap();
        prop_assert_eq!(postcard::from_bytes::<ProcEnd>(&bytes), Ok(end.clone()));
        let frame = Frame::Control(Control::ProcsEnded { ends: vec![(ProcUid(1), end)] });
        prop_assert_eq!(Frame::decode(&frame.encode()[4..]), Ok(frame));
    }
}
