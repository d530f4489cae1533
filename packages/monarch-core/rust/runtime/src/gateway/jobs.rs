//! The jobs of this process: the one of a client, and those in which this host is.
//!
//! What it needs: the handler of the sessions of new jobs.
//!
//! What always holds:
//! - This host has another id in each job.
//! - Once `close` was called, no connection is opened or admitted any more.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use net::Poller;
use net::lock::lock;
use net::trust::{Opened, Subject};
use wire::ProcUid;
use wire::greeting::JobSettings;

use super::host::{Host, Member};
use super::job::{Job, NewHandler};
use super::random_id::random_id;
use crate::roles::CastState;
use crate::sync::{read, write};

/// The number of ended jobs that `Jobs::ended` keeps. Only connections that were under way at the end of a job need the record.
const ENDED_JOBS_KEPT: usize = 64;

/// The jobs of one process.
pub struct Jobs {
    /// The uid of this process, which is the id of its own job.
    pub(super) uid: ProcUid,
    pub(super) poller: Arc<Poller>,
    /// Makes the handlers of the sessions.
    pub(super) handler: OnceLock<NewHandler>,
    /// The jobs, by the uid of the client.
    jobs: RwLock<HashMap<ProcUid, Arc<Job>>>,
    /// The same jobs, by the id that this host has in the job.
    by_own_id: RwLock<HashMap<ProcUid, Arc<Job>>>,
    /// The last jobs that have ended. A late connection of such a job is not reported as refused.
    ended: Mutex<VecDeque<ProcUid>>,
    closing: AtomicBool,
}

impl Jobs {
    pub(super) fn new(uid: ProcUid, poller: &Arc<Poller>) -> Arc<Jobs> {
        Arc::new(Jobs {
            uid,
            poller: poller.clone(),
            handler: OnceLock::new(),
            jobs: RwLock::default(),
            by_own_id: RwLock::default(),
            ended: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    pub fn get(&self, id: ProcUid) -> Option<Arc<Job>> {
        read(&self.jobs).get(&id).cloned()
    }

    /// The job in which this process is the host with this id.
    pub fn by_own_id(&self, host: ProcUid) -> Option<Arc<Job>> {
        read(&self.by_own_id).get(&host).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Job>> {
        read(&self.jobs).values().cloned().collect()
    }

    /// The first job that has the host, with the host.
    pub(super) fn with_host(&self, host: ProcUid) -> Option<(Arc<Job>, Arc<Host>)> {
        self.all().into_iter().find_map(|job| job.host(host).map(|host| (job, host)))
    }

    /// The job of an incoming connection between these two hosts; none if the connection is not for this host, or if the certificate of the
    /// other end does not permit it to act as the host `from`.
    pub(super) fn of_connection(&self, opened: &Opened, from: ProcUid, to: ProcUid) -> Option<Arc<Job>> {
        let may_act = match opened.subject {
            Subject::Host(host) => host == from.0,
            Subject::Client => from.0 == opened.job.0,
            // Certificates of the site name machines, and all members of a job use sockets of the same user: every member may act as any
            // host of the job.
            Subject::Site(_) | Subject::Unnamed => true,
        };
        self.get(ProcUid(opened.job.0)).filter(|job| job.own_id == to && from != to && may_act)
    }

    /// Makes a job, which has this id and in which this process has the id `own_id`. An existing job is kept.
    pub(super) fn start(&self, id: ProcUid, own_id: ProcUid, settings: JobSettings) -> io::Result<Arc<Job>> {
        if let Some(job) = self.get(id) {
            return Ok(job);
        }
        let job = Job::new(id, own_id, settings, &self.poller, self.handler.get().ok_or(io::ErrorKind::NotConnected)?);
        // The client may be back with the same uid.
        lock(&self.ended).retain(|ended| *ended != job.id);
        write(&self.by_own_id).insert(job.own_id, job.clone());
        write(&self.jobs).insert(job.id, job.clone());
        Ok(job)
    }

    /// Makes the job that has only the gateway of this client as a host.
    pub(super) fn start_for_gateway(&self, settings: JobSettings) -> io::Result<Arc<Job>> {
        let id = ProcUid(random_id()?);
        self.start(id, id, settings)
    }

    pub(super) fn remove(&self, job: &Job) {
        write(&self.by_own_id).remove(&job.own_id);
        write(&self.jobs).remove(&job.id);
        let mut ended = lock(&self.ended);
        ended.push_back(job.id);
        if ended.len() > ENDED_JOBS_KEPT {
            ended.pop_front();
        }
    }

    /// True if the job is one of the last that have ended.
    pub(super) fn has_ended(&self, id: ProcUid) -> bool {
        lock(&self.ended).contains(&id)
    }

    /// True while the job exists and this process does not close.
    pub(super) fn is_active(&self, job: &Job) -> bool {
        !self.is_closing() && self.get(job.id).is_some()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns false if this process closes already.
    pub(super) fn close(&self) -> bool {
        !self.closing.swap(true, Ordering::AcqRel)
    }

    // ---- for other components of the process

    /// True if the uid is that of a job, or of a host of a job.
    pub(super) fn has(&self, uid: ProcUid) -> bool {
        self.all().iter().any(|job| job.id == uid || job.host(uid).is_some())
    }

    /// The id of this host in the job of that client; none in the client itself, and for a client without a job here.
    pub(crate) fn own_id_in(&self, client: ProcUid) -> Option<ProcUid> {
        self.get(client).filter(|j| !j.is_clients()).map(|j| j.own_id)
    }

    /// The hosts of this client, sorted by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        let Some(job) = self.get(self.uid) else { return vec![] };
        let mut all: Vec<Member> = job.hosts().into_iter().filter_map(|h| h.member()).collect();
        all.sort_by(|a, b| (&a.name, a.id.0).cmp(&(&b.name, b.id.0)));
        all
    }

    /// Clients of other hosts that have a job here, by the name that each client has sent.
    pub(crate) fn clients(&self) -> Vec<String> {
        let mut all: Vec<String> = self.all().iter().filter(|j| !j.is_clients()).filter_map(|j| Some(j.host(j.id)?.name())).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The casts of all jobs.
    pub(super) fn cast_state(&self) -> CastState {
        self.all().iter().map(|job| job.cast_counts()).fold(CastState::default(), |sum, c| CastState {
            records: sum.records + c.records,
            groups: sum.groups + c.groups,
            held: sum.held + c.held,
            calls: 0,
        })
    }
}
