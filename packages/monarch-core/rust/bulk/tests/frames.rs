//! Messages: encoding and decoding are inverse, and other bytes are harmless.

use bulk::frames::{Part, Place, Reply, Request, decode, encode};
use bulk::sys::LONGEST;
use proptest::prelude::*;

proptest! {
    #[test]
    fn garbage(bytes in prop::collection::vec(any::<u8>(), 0..LONGEST)) {
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Reply>(&bytes);
    }

    #[test]
    fn requests(id: [u8; 16], offset: u64, len: u64, epoch: u64, write: bool, number: u32) {
        let part = Part { offset, run: len, counts: [len, epoch], steps: [offset; 2] };
        for request in [
            Request::Copy { id, epoch, offset, len, write },
            Request::Restrict { id, offset, len, readonly: write },
            Request::CompareSwap { id, offset, compare: len, swap: epoch },
            Request::Open { id, epoch },
            Request::Gather { id, epoch, skip: len, len: offset, parts: vec![part] },
        ] {
            let message = encode(number, &request);
            prop_assert!(message.len() < LONGEST);
            prop_assert_eq!(decode::<Request>(&message), Some((number, request)));
            // Bytes after a message make it invalid.
            prop_assert_eq!(decode::<Request>(&[&message[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn replies(slot: u32, epoch: u64, address: u64, len: u64, readonly: bool, segment: u64, text in ".{0,400}") {
        let place = Place { segment, len, offset: address };
        for reply in [
            Reply::Opened { slot, epoch, address, len, readonly, segment: Some(place) },
            Reply::refused(&bulk::Failure::new(bulk::Kind::Access, text)),
        ] {
            let message = encode(1, &reply);
            prop_assert!(message.len() < LONGEST);
            prop_assert_eq!(decode::<Reply>(&message), Some((1, reply)));
        }
    }
}
