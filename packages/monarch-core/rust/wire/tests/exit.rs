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
    fn end_is_equal_in_replies_and_frames(end in strategy::proc_end()) {
        let bytes = postcard::to_stdvec(&end).unwrap();
        prop_assert_eq!(postcard::from_bytes::<ProcEnd>(&bytes), Ok(end.clone()));
        let frame = Frame::Control(Control::ProcsEnded { ends: vec![(ProcUid(1), end)] });
        prop_assert_eq!(Frame::decode(&frame.encode()[4..]), Ok(frame));
    }
}

/// The first byte of an encoded reason. A reason that is added or moved changes this list. The change is incompatible and raises `VERSION`.
fn place(reason: &ExitReason) -> u8 {
    match reason {
        ExitReason::Returned => 0,
        ExitReason::ExitCode(_) => 1,
        ExitReason::Signal { .. } => 2,
        ExitReason::Stopped(_) => 3,
        ExitReason::NotStarted(_) => 4,
        ExitReason::HostLost(_) => 5,
        ExitReason::Oom { .. } => 6,
        ExitReason::LinkLost(_) => 7,
        ExitReason::ClientLost(_) => 8,
    }
}

#[test]
fn version_has_these_reasons() {
    assert_eq!(wire::VERSION, 7, "the reasons of this version are in `place`");
}

proptest! {
    #[test]
    fn reasons_keep_their_positions(reason in strategy::exit_reason()) {
        prop_assert_eq!(postcard::to_stdvec(&reason).unwrap()[0], place(&reason));
    }
}
