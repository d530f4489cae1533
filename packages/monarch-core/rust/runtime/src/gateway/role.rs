//! The gateway as the components of its process know it.

use std::sync::Arc;

use net::{Link, RecvPart};
use wire::exit::ProcEnd;
use wire::{CallId, Cast, Control, ProcUid, Reply, Route, Status};

use super::Gateway;
use crate::roles::{CastState, LocalGateway};

impl LocalGateway for Gateway {
    fn knows(&self, uid: ProcUid) -> bool {
        self.jobs().iter().any(|job| job.id == uid || job.host(uid).is_some())
    }

    fn control(&self, from: ProcUid, c: Control) {
        self.control(from, c);
    }

    fn forward(&self, head: &Route, body: &[&[u8]]) {
        self.forward(head, body);
    }

    fn forward_part(&self, head: &Route, number: u64, part: RecvPart) {
        self.forward_part(head, number, part);
    }

    fn forward_of_proc(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.send_for(link, head, body);
    }

    fn waiting_for(&self, host: ProcUid, here: ProcUid) -> usize {
        let host = self.job_by_own_id(here).and_then(|job| job.host(host));
        host.map_or(0, |host| host.session.waiting().0)
    }

    fn procs_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        self.procs_ended(ends);
    }

    fn cast_here(&self, cast: Cast) {
        self.cast_here(cast);
    }

    fn send_casts(&self) {
        self.send_casts();
    }

    fn cast_of_proc(&self, proc: ProcUid, frame: &[u8]) {
        self.cast_of_proc(proc, frame);
    }

    fn cast_reply(&self, proc: ProcUid, reply: Reply, link: &Arc<Link>) {
        self.cast_reply(proc, reply, link);
    }

    fn cast_answer(&self, call_id: CallId, status: Status, parts: Vec<u8>) {
        if let Some(node) = self.node() {
            self.cast_answer(node.uid, call_id, status, parts);
        }
    }

    fn cast_state(&self) -> CastState {
        self.jobs().iter().map(|job| job.cast_counts()).fold(CastState::default(), |sum, c| CastState {
            records: sum.records + c.records,
            groups: sum.groups + c.groups,
            held: sum.held + c.held,
            calls: 0,
        })
    }
}
