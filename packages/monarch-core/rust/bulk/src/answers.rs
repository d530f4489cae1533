//! The owner's answers to requests about its memory, over any connection.

use std::sync::Arc;

use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{Id, Reply, Request};
use crate::registry::{Completion, Registry, compare_swap, fetch_add};

/// The answer to a request of the process with this number; `requester_name` names it in messages. `None`: the request is not one about
/// memory.
pub fn answer(registry: &Arc<Registry>, request: &Request, number: u64, requester_name: impl FnOnce() -> String) -> Option<Outcome<Reply>> {
    Some(match *request {
        Request::Open { id, epoch } => registry.find(&id).and_then(|found| {
            if found.epoch != epoch {
                return Err(Failure::new(Kind::Access, "the handle has another epoch than the buffer"));
            }
            let (address, len) = (found.range.address as u64, found.range.len as u64);
            Ok(Reply::Opened { slot: found.slot, epoch, address, len, readonly: found.range.readonly, segment: found.place() })
        }),
        Request::Restrict { id, offset, len, readonly } => {
            registry.restrict(&id, offset, len, readonly, number).map(|(id, epoch)| Reply::Restricted { id, epoch })
        }
        Request::Drop { id } => end(registry, &id, number, requester_name, None).map(|()| Reply::Done),
        Request::Why { id } => Err(Failure::new(Kind::Released, registry.why(&id))),
        Request::FetchAdd { id, offset, add } => registry.atomic(&id, offset, fetch_add(add)).map(Reply::Value),
        Request::CompareSwap { id, offset, compare, swap } => registry.atomic(&id, offset, compare_swap(compare, swap)).map(Reply::Value),
        _ => return None,
    })
}

/// Drops memory that devices know. `done` is called when no device can reach it.
pub fn drop_exported(
    registry: &Arc<Registry>,
    id: &Id,
    number: u64,
    requester_name: impl FnOnce() -> String,
    done: Completion,
) -> Outcome<()> {
    end(registry, id, number, requester_name, Some(done))
}

fn end(registry: &Arc<Registry>, id: &Id, number: u64, requester_name: impl FnOnce() -> String, done: Option<Completion>) -> Outcome<()> {
    match registry.find(id) {
        Ok(found) if found.range.readonly && found.creator != number => {
            return Err(Failure::new(Kind::Access, "a read-only handle cannot drop the buffer"));
        }
        Ok(_) => registry.end(id, &format!("dropped by {}", requester_name()), done),
        // A second drop has no effect.
        Err(_) => done.into_iter().for_each(|done| done(Ok(()))),
    }
    Ok(())
}
