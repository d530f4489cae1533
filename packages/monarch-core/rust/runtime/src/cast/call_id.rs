//! The call ids of answers to casts: a target answers to the agent of its host, which knows the cast by its id.

use wire::CallId;

/// A flag of the call id: the answer goes to the agent of this host, as part of a cast.
pub const CAST_ANSWER: u64 = 1 << 63;
/// With this flag, the call id contains the cast id of the agent's cast and the index of the target.
const INDEX_SHIFT: u32 = 40;
/// The bits of the call id that contain the cast id.
const CAST_ID_BITS: u64 = (1 << INDEX_SHIFT) - 1;

/// The call id of a target's answer to a cast of the agent.
pub fn cast_call_id(cast_id: u64, index: u32) -> CallId {
    CallId(CAST_ANSWER | u64::from(index) << INDEX_SHIFT | cast_id & CAST_ID_BITS)
}

/// The cast id and the index that the call id of `cast_call_id` contains.
pub(crate) fn decode_cast_call_id(call_id: CallId) -> (u64, u32) {
    (call_id.0 & CAST_ID_BITS, ((call_id.0 & !CAST_ANSWER) >> INDEX_SHIFT) as u32)
}
