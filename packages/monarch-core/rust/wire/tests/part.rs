//! Parts: inline bytes and blocks of the sender's arena.

mod strategy;

use proptest::prelude::*;
use wire::Part;
use wire::cursor::{Cursor, DecodeError};

proptest! {
    #[test]
    fn parts_survive_the_trip(parts in proptest::collection::vec(strategy::part(), 0..8)) {
        let mut bytes = (parts.len() as u32).to_le_bytes().to_vec();
        parts.iter().for_each(|p| p.put(&mut bytes));
        let mut c = Cursor::new(&bytes);
        prop_assert_eq!(Part::read_all(&mut c), Ok(parts));
        prop_assert_eq!(c.finish(), Ok(()));
    }

    #[test]
    fn part_has_its_length(part in strategy::part()) {
        let want = match &part {
            Part::Inline { data, .. } => data.len() as u64,
            Part::Shared { len, .. } | Part::OutOfBand { len, .. } | Part::Offered { len, .. } => *len,
        };
        prop_assert_eq!(part.len(), want);
        prop_assert_eq!(part.is_empty(), want == 0);
    }

    #[test]
    fn unknown_tags_are_named(tag in any::<u8>().prop_filter("unknown", |t| t & 0x7f > 3)) {
        prop_assert_eq!(Part::read(&mut Cursor::new(&[tag; 40])), Err(DecodeError::Tag(tag & 0x7f)));
    }

    #[test]
    fn false_count_is_truncated(count in 1u32.., have in 0u32..4) {
        prop_assume!(count > have);
        let mut bytes = count.to_le_bytes().to_vec();
        (0..have).for_each(|_| Part::put_inline_head(&mut bytes, 0, false));
        prop_assert_eq!(Part::read_all(&mut Cursor::new(&bytes)), Err(DecodeError::Truncated));
    }
}
