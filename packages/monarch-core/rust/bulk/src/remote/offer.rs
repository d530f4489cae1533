//! The record of an offer in a frame, by which the receiver pulls a block: a kind, and an id. Other kinds are for other transports.

use crate::frames::Id;

/// The kind for registered memory that is read over a stream.
const REGISTERED: u8 = 1;

/// An offer: a registered block of the sender, which the receiver pulls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    pub id: Id,
    pub epoch: u64,
}

impl Offer {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = vec![REGISTERED];
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out
    }

    /// `None` if the record has another kind.
    pub fn from_bytes(record: &[u8]) -> Option<Offer> {
        let (&REGISTERED, rest) = record.split_first()? else { return None };
        let (id, epoch) = rest.split_first_chunk()?;
        Some(Offer { id: *id, epoch: u64::from_le_bytes(epoch.try_into().ok()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_encoding() {
        let offer = Offer { id: [7; 16], epoch: 41 };
        let record = offer.to_bytes();
        assert_eq!(Offer::from_bytes(&record), Some(offer));
        assert_eq!(Offer::from_bytes(&record[..record.len() - 1]), None);
        assert_eq!(Offer::from_bytes(&[2; 25]), None);
        assert_eq!(Offer::from_bytes(&[]), None);
    }
}
