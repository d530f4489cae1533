//! The gateway as others know it: the components of its process (`LocalGateway`), and those that start and end jobs. This is the one place
//! that delegates to its components.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use net::address::Address;
use net::lock::lock;
use net::trust::Policy;
use net::{Link, RecvPart};
use wire::exit::ProcEnd;
use wire::greeting::JobSettings;
use wire::{CallId, Cast, Control, ProcUid, Reply, Route, Status};

use super::Gateway;
use super::job::Job;
use super::join::Wanted;
use super::route_gateway::ClientGateway;
use crate::roles::{CastState, LocalGateway};

impl LocalGateway for Gateway {
    fn knows(&self, uid: ProcUid) -> bool {
        self.jobs.has(uid)
    }

    fn control(&self, from: ProcUid, c: Control) {
        self.controls.take(from, c);
    }

    fn forward(&self, head: &Route, body: &[&[u8]]) {
        self.forward.send(head, body);
    }

    fn forward_part(&self, head: &Route, number: u64, part: RecvPart) {
        self.parts.forward(head, number, part);
    }

    fn forward_of_proc(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.forward.send_for(link, head, body);
    }

    fn waiting_for(&self, host: ProcUid, here: ProcUid) -> usize {
        let host = self.jobs.by_own_id(here).and_then(|job| job.host(host));
        host.map_or(0, |host| host.session.waiting().0)
    }

    fn procs_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        self.casts.procs_ended(ends);
    }

    fn cast_here(&self, cast: Cast) {
        self.casts.add(cast);
    }

    fn send_casts(&self) {
        self.casts.send();
    }

    fn cast_of_proc(&self, proc: ProcUid, frame: &[u8]) {
        self.casts.of_proc(proc, frame);
    }

    fn cast_reply(&self, proc: ProcUid, reply: Reply, link: &Arc<Link>) {
        self.casts.reply(proc, reply, link);
    }

    fn cast_answer(&self, call_id: CallId, status: Status, parts: Vec<u8>) {
        self.casts.answer(self.local.uid, call_id, status, parts);
    }

    fn silence(&self, host: ProcUid) -> Option<(String, Duration)> {
        let host = self.jobs.all().into_iter().find_map(|job| job.host(host))?;
        Some((host.name(), host.heartbeat_age(self.local.poller.now())?))
    }

    fn cast_state(&self) -> CastState {
        self.jobs.cast_state()
    }
}

impl Gateway {
    /// Opens the listener to which clients and agents connect; returns its port.
    pub fn listen(&self, at: &Address, policy: Policy) -> io::Result<u16> {
        self.accept.listen(at, policy)
    }

    /// True in an agent: other hosts can connect to this process.
    pub fn is_agent(&self) -> bool {
        self.accept.is_listening()
    }

    pub fn job(&self, id: ProcUid) -> Option<Arc<Job>> {
        self.jobs.get(id)
    }

    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.all()
    }

    /// Makes the job of this client, if it does not exist.
    pub fn start_job(&self, settings: JobSettings) -> io::Result<Arc<Job>> {
        self.jobs.start(self.local.uid, self.local.uid, settings)
    }

    /// Makes hosts with these ids, which join later. Frames can be sent to them from now on: they wait for the join.
    pub fn announce(&self, job: &Job, hosts: &[ProcUid]) {
        self.joins.announce(job, hosts);
    }

    /// Joins a host to the job. The outcome answers the call `call_id` at the host's rank.
    pub fn join(&self, job: &Arc<Job>, from: &str, wanted: Wanted, call_id: CallId, bound: Duration) {
        self.joins.join(job, from, wanted, call_id, bound);
    }

    /// Joins several hosts that have the same trust, as `join` does for one.
    pub fn join_all(&self, job: &Arc<Job>, from: &str, wanted: Vec<Wanted>, call_id: CallId, bound: Duration) {
        self.lists.join_all(job, from, wanted, call_id, bound);
    }

    /// Ends the join of a host that the caller does not wait for any more.
    pub fn give_up(&self, job: &Arc<Job>, host: ProcUid, call_id: CallId, rank: u32, why: &str) {
        self.joins.give_up(job, host, call_id, rank, why);
    }

    /// Notes that the host was asked to exit: its end is no loss.
    pub fn expect_end(&self, host: ProcUid) {
        self.controls.expect_end(host);
    }

    /// Makes the job that has only the gateway as a host.
    pub fn start_gateway_job(&self, settings: JobSettings) -> io::Result<Arc<Job>> {
        self.jobs.start_for_gateway(settings)
    }

    /// Joins the agent at this address as the gateway: hosts are reached through it from now on. The outcome answers the call `call_id`.
    pub fn use_gateway(&self, job: &Arc<Job>, text: &str, from: &str, wanted: Wanted, call_id: CallId, bound: Duration) {
        self.joins.use_gateway(job, text, from, wanted, call_id, bound);
    }

    pub fn route_gateway(&self) -> Option<Arc<ClientGateway>> {
        self.route_gateway.get()
    }

    /// Removes a gateway that has not joined: hosts are dialled directly again.
    pub fn forget_gateway(&self) {
        self.joins.forget_gateway();
    }

    /// Ends this process's part in its jobs. Waits at most `bound` until its notices are acknowledged.
    pub fn close(&self, bound: Duration) {
        self.closing.close(bound);
    }

    /// For tests: renews the certificates of all hosts of a client's job now.
    pub fn renew_all(&self, job: &Arc<Job>, from: &str) {
        from.clone_into(&mut lock(&job.client_description));
        job.hosts().iter().for_each(|host| self.renewals.renew(job, host));
    }

    /// For tests: pauses the sessions with `hosts` and resumes all other sessions. Returns the procs of this host.
    pub fn cut_off(&self, hosts: &[ProcUid], beside: &[ProcUid]) -> Vec<ProcUid> {
        self.pauses.cut_off(hosts, beside)
    }
}
