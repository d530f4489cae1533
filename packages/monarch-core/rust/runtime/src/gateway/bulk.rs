//! Streams for bulk data between two processes of different hosts: the gateways open them, and then pass them to the processes.
//!
//! A client is never dialled: an agent that needs a stream to the client, or to a proc of the client's host, requests that the client
//! dials.
//!
//! What it needs: the jobs, the dialler, and this process, which passes the streams on.
//!
//! What always holds:
//! - A stream belongs to one job, in which both processes are.
//! - The process that has requested a stream gets it, or learns why not.

use std::sync::Arc;
use std::time::Duration;

use net::dial::{NoStream, Ready, greeting_frame};
use net::trust::{Kind, Opened};
use wire::greeting::{self, Greeting, RefusalReason, Unreached, Welcome};
use wire::{Control, ProcUid};

use super::dialler::Dialler;
use super::job::Job;
use super::jobs::Jobs;
use super::refusals::refusal;
use super::route_gateway::RouteGateway;
use crate::local::Local;
use crate::streams::{BulkStream, UNKNOWN};
use crate::tasks;

/// Limit of one attempt to open a stream.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause between checks whether a test still pauses the host's session.
const PAUSE_CHECK: Duration = Duration::from_millis(20);
/// Reason of a refusal: the process to be reached does not exist any more.
const PROCESS_ENDED: &str = "the process is not there any more";

/// The two processes of a stream, and the number of the request that the stream answers.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub number: u64,
    /// The process on this host.
    pub ours: ProcUid,
    /// The process on the other host.
    pub theirs: ProcUid,
    /// True if the process on this host serves the other one's request; false if it has made the request.
    pub serves: bool,
}

/// Opens streams.
pub struct BulkStreams {
    pub(super) local: Arc<Local>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) route_gateway: Arc<RouteGateway>,
    pub(super) dialler: Arc<Dialler>,
}

impl BulkStreams {
    /// Opens a stream for process `from`, which has requested one to process `to`. The request comes from a process of this host (`by` is
    /// `from`), or from the agent `by` of the host of `from`.
    pub(crate) fn dial(self: &Arc<Self>, by: ProcUid, number: u64, from: ProcUid, (to, to_host): (ProcUid, ProcUid)) {
        let Some(node) = self.local.node() else { return };
        let is_ours = |uid: ProcUid, job: &Job| uid == job.own_id || node.roles.agent().is_some_and(|a| a.is_in_job(uid, job.own_id));
        if by == from {
            // The request is of this process, or of a proc of this host. A service belongs to several jobs: the stream belongs to the job
            // that has the other host.
            let own = node.roles.agent().and_then(|a| a.job_of(from)).and_then(|here| self.jobs.by_own_id(here));
            let known = |job: &Arc<Job>| is_ours(from, job) && (to_host == job.id || job.host(to_host).is_some());
            let Some(job) = own.filter(known).or_else(|| self.jobs.all().into_iter().find(known)) else {
                return node.streams.refuse(from, number, UNKNOWN.to_owned());
            };
            node.peers.route(to, to_host, job.own_id);
            if to_host == job.id {
                return node.peers.peer(job.id).send_control(Control::BulkDial { number, from, to, to_host });
            }
            return self.open(&job, to_host, Pair { number, ours: from, theirs: to, serves: false });
        }
        // An agent requests that the client dials.
        let Some(job) = self.jobs.get(node.uid).filter(|j| j.is_clients() && j.host(by).is_some()) else { return };
        if is_ours(to, &job) {
            node.peers.route(from, by, job.own_id);
            self.open(&job, by, Pair { number, ours: to, theirs: from, serves: true });
        } else {
            self.gone(to, from);
            node.streams.refuse(from, number, PROCESS_ENDED.to_owned());
        }
    }

    fn open(self: &Arc<Self>, job: &Arc<Job>, host: ProcUid, pair: Pair) {
        // The state of a host is changed on the I/O thread only.
        self.open_in(Duration::ZERO, job.clone(), host, pair);
    }

    fn open_in(self: &Arc<Self>, delay: Duration, job: Arc<Job>, host: ProcUid, pair: Pair) {
        let task = move |me: &Arc<BulkStreams>| {
            let Some(host) = job.host(host).filter(|h| h.lost().is_none()) else {
                return me.failed(&pair, "its host is lost".to_owned());
            };
            if me.route_gateway.before(&job).is_some() {
                return me.failed(&pair, "its host is behind a gateway".to_owned());
            }
            if host.session.is_paused() {
                return me.open_in(PAUSE_CHECK, job, host.id, pair);
            }
            let Pair { number, ours, theirs, serves } = pair;
            let hello = Greeting::Bulk { number, from: ours, from_host: job.own_id, to: theirs, to_host: host.id, serves };
            let done = tasks::callback(me, move |me, result| me.opened(&pair, result));
            me.dialler.dial(&job, &host, Kind::Channel, greeting::encode(&hello), ATTEMPT, Box::new(done));
        };
        match delay {
            Duration::ZERO => tasks::spawn(&self.local.poller, self, task),
            _ => tasks::later(&self.local.poller, delay, self, task),
        }
    }

    fn opened(&self, pair: &Pair, result: Result<Ready, NoStream>) {
        let ready = match result {
            Ok(ready) => ready,
            Err(why) => return self.failed(pair, why.to_string()),
        };
        match greeting::decode(&ready.answer) {
            Some(Welcome::Bulk) if ready.early.is_empty() => match ready.opened.stream.into_parts() {
                Some((fd, keys)) => self.hand(pair, BulkStream::new(fd, keys, true)),
                None => self.failed(pair, "the stream cannot be handed on".to_owned()),
            },
            Some(Welcome::Unreached { why, .. }) => self.failed(pair, why),
            Some(Welcome::Refused(no)) => self.failed(pair, refusal(no).to_owned()),
            _ => self.failed(pair, "its answer is malformed".to_owned()),
        }
    }

    fn hand(&self, pair: &Pair, stream: BulkStream) {
        let Some(node) = self.local.node() else { return };
        if let Some(agent) = node.roles.agent() {
            // Each process is notified of the other one's end.
            agent.note_exchange(pair.ours, pair.theirs);
        }
        node.streams.hand(pair.ours, pair.number, pair.theirs, !pair.serves, stream);
    }

    /// Notifies the requesting process that its stream was not opened.
    fn failed(&self, pair: &Pair, why: String) {
        if let Some(node) = self.local.node() {
            node.streams.refuse(if pair.serves { pair.theirs } else { pair.ours }, pair.number, why);
        }
    }

    /// Notifies the requesting process how the process at the other end has ended, if that is known.
    fn gone(&self, uid: ProcUid, asker: ProcUid) {
        let Some(node) = self.local.node() else { return };
        if let Some(end) = node.roles.agent().and_then(|a| a.end_of(uid)) {
            node.peers.peer(asker).send_control(Control::ProcsEnded { ends: vec![(uid, end)] });
        }
    }

    /// Handles a stream that another host has opened for a process of this host.
    pub(super) fn asked(self: &Arc<Self>, mut opened: Opened, hello: Greeting) {
        let Greeting::Bulk { number, from, from_host, to, to_host, serves } = &hello else { return };
        let (number, from, from_host, to, to_host, serves) = (*number, *from, *from_host, *to, *to_host, *serves);
        let Some(node) = self.local.node() else { return };
        let found = self.jobs.of_connection(&opened, from_host, to_host);
        if found.as_ref().and_then(|job| job.host(from_host)).is_some_and(|h| h.session.is_paused() && h.lost().is_none()) {
            return tasks::later(&self.local.poller, PAUSE_CHECK, self, move |me| me.asked(opened, hello));
        }
        let ours = |job: &Job| node.roles.agent().is_some_and(|a| a.is_in_job(to, job.own_id));
        let welcome = match &found {
            _ if self.jobs.is_closing() => Welcome::Refused(RefusalReason::Closing),
            None => Welcome::Refused(RefusalReason::NoSession),
            Some(job) if job.host(from_host).is_some_and(|h| h.lost().is_some()) => Welcome::Refused(RefusalReason::Lost),
            Some(job) if !ours(job) => Welcome::Unreached { cause: Unreached::Failed, why: PROCESS_ENDED.to_owned() },
            Some(_) => Welcome::Bulk,
        };
        if let (Welcome::Unreached { .. }, Some(job)) = (&welcome, &found) {
            node.peers.route(from, from_host, job.own_id);
            self.gone(to, from);
        }
        let frame = greeting_frame(&greeting::encode(&welcome));
        // The socket's buffer takes so small an answer at once. A stream with unwritten bytes cannot be passed to a process.
        let sent = opened.stream.write(&[&frame]).is_ok_and(|n| n == frame.len()) && opened.stream.flush().is_ok_and(|all| all);
        let (Welcome::Bulk, Some(job), true) = (welcome, found, sent) else { return };
        node.peers.route(from, from_host, job.own_id);
        if let Some((fd, keys)) = opened.stream.into_parts() {
            self.hand(&Pair { number, ours: to, theirs: from, serves: !serves }, BulkStream::new(fd, keys, false));
        }
    }
}
