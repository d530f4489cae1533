//! The membership of this process in jobs that span hosts, as a Python object.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::address::Address;
use net::dial::error_text;
use net::lock::lock;
use net::trust::{DialTrust, JobId, Policy, Secret, SitePki};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use runtime::gateway::{self, Wanted};
use runtime::{Gateway, Mode, Node};
use wire::greeting::JobSettings;
use wire::join_tree::JoinFailureKind;
use wire::{Control, ProcUid};

use crate::fork;
use crate::gil;
use crate::pending_call::PendingCall;
use crate::process::{Process, failed};

/// An address: `("tcp", host, port)`, `("unix", name, 0)` or `("fd", "", number)`.
type Where = (String, String, i32);

fn address((kind, name, number): Where) -> PyResult<Address> {
    Ok(match kind.as_str() {
        "tcp" => {
            let port = u16::try_from(number).map_err(|_| PyValueError::new_err(format!("no such port: {number}")))?;
            Address::Tcp { host: name, port }
        }
        "unix" => Address::Unix(name),
        "fd" => Address::Inherited(number),
        other => return Err(PyValueError::new_err(format!("no such kind of address: {other}"))),
    })
}

/// The keys and secrets by which an agent and its clients authenticate each other.
#[derive(FromPyObject, PartialEq, Eq)]
pub struct Trust {
    kind: String,
    secret: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Trust {
    fn policy(&self) -> PyResult<Policy> {
        let refused = |e: std::io::Error| PyValueError::new_err(e.to_string());
        Ok(match self.kind.as_str() {
            "secret" => Policy::Secret(Secret::from_bytes(&self.secret).map_err(refused)?),
            "site" => Policy::Site(SitePki::from_pem(&self.key, &self.ca).map_err(refused)?),
            "insecure" => Policy::Insecure,
            "user" => Policy::SameUser,
            other => return Err(PyValueError::new_err(format!("no such kind of trust: {other}"))),
        })
    }
}

/// The reason why a host has not joined.
#[pyclass(frozen)]
pub struct JoinFailure(wire::join_tree::JoinFailure);

#[pymethods]
impl JoinFailure {
    /// One side did not authenticate the other.
    #[getter]
    fn is_authentication(&self) -> bool {
        self.0.kind == JoinFailureKind::Authentication
    }

    /// The two sides have different versions.
    #[getter]
    fn is_version(&self) -> bool {
        self.0.kind == JoinFailureKind::Version
    }

    #[getter]
    fn why(&self) -> &str {
        &self.0.why
    }
}

/// The gateway of this process, with the trust for its hosts.
#[pyclass(frozen)]
pub struct Hosts {
    node: Arc<Node>,
    gateway: Arc<Gateway>,
    /// The trust for dialling hosts of this client's job: hosts with the same secret share one authority.
    trusts: Mutex<Vec<(Trust, Arc<DialTrust>)>>,
}

/// The error with its number, which `OSError` in Python has as `errno`.
fn numbered(e: std::io::Error) -> PyErr {
    match e.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error_text(&e))),
        None => PyErr::from(e),
    }
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX / 4)
}

/// The settings of a job, from seconds.
fn job_settings((loss, reconnect, lease): (f64, f64, f64)) -> JobSettings {
    let ms = |s: f64| seconds(s).as_millis() as u64;
    JobSettings { loss_ms: ms(loss), reconnect_ms: ms(reconnect), lease_ms: ms(lease) }
}

#[pymethods]
impl Hosts {
    #[new]
    fn new(process: &Process) -> PyResult<Self> {
        fork::check_not_forked()?;
        let node = process.node.clone();
        let gateway = process.agent.as_ref().map_or_else(|| Ok(Gateway::new(&node)), |agent| agent.open_gateway())?;
        Ok(Hosts { node, gateway, trusts: Mutex::default() })
    }

    /// Accepts clients at the address; returns the port.
    fn listen(&self, at: Where, trust: Trust) -> PyResult<u16> {
        self.gateway.listen(&address(at)?, trust.policy()?).map_err(numbered)
    }

    /// Reaches all hosts through the agent at this address (a gateway; `text` is the address as the user gave it). The gateway has joined
    /// when the pending call has its answer; `announce` and `join_all` join the other hosts.
    #[allow(clippy::too_many_arguments)]
    fn use_gateway(
        &self,
        py: Python<'_>,
        text: &str,
        at: Where,
        agent: u64,
        trust: Trust,
        who: &str,
        settings: (f64, f64, f64),
        bound: f64,
    ) -> PyResult<PendingCall> {
        let (address, policy) = (address(at)?, trust.policy()?);
        let host = ProcUid(gateway::random_id().map_err(failed)?);
        let job = self.gateway.start_gateway_job(job_settings(settings)).map_err(failed)?;
        let trust = Arc::new(DialTrust::new_client(JobId(job.id.0), policy).map_err(failed)?);
        let inner = self.node.calls.start(Mode::Gather, 1, Arc::default());
        let (call_id, bound) = (inner.call_id, seconds(bound));
        let wanted = Wanted { host, address, agent, rank: 0, trust };
        gil::blocking(py, || self.gateway.use_gateway(&job, text, who, wanted, call_id, bound));
        Ok(PendingCall::new(&self.node, inner))
    }

    /// Forgets the gateway, which has not joined: hosts are dialled directly again.
    fn forget_gateway(&self) {
        self.gateway.forget_gateway();
    }

    /// The gateway: its id, its address as given, and why it is lost (`None` if it is not).
    fn route_gateway(&self) -> Option<(u64, String, Option<String>)> {
        self.gateway.route_gateway().map(|w| (w.host.id.0, w.address.clone(), w.host.lost()))
    }

    /// True if the agent of this host is the gateway, through which all other hosts are reached.
    fn is_gateway(&self, host: u64) -> bool {
        let agent = |h: &runtime::gateway::Host| h.info().agent;
        let found = self.gateway.job(self.node.uid).and_then(|j| j.host(ProcUid(host)));
        found.zip(self.gateway.route_gateway()).is_some_and(|(h, w)| agent(&h) != 0 && agent(&h) == agent(&w.host))
    }

    /// Announces hosts with these ids, which are going to join this client's job. `settings` are the seconds of `host_loss_timeout`,
    /// `channel_reconnect_timeout` and the lease (0: none). The pending call gets an answer for each host, by its position: a description
    /// of the host as JSON, or an error with the reason why the host did not join.
    fn announce(&self, hosts: Vec<u64>, settings: (f64, f64, f64)) -> PyResult<PendingCall> {
        let job = self.gateway.start_job(job_settings(settings)).map_err(failed)?;
        let ids: Vec<ProcUid> = hosts.into_iter().map(ProcUid).collect();
        self.gateway.announce(&job, &ids);
        let inner = self.node.calls.start(Mode::Gather, ids.len(), Arc::default());
        Ok(PendingCall::new(&self.node, inner))
    }

    /// Joins workers with the same trust, within `bound` seconds. Each worker is given by its position in the call, its id, its address,
    /// and the uid of its agent or 0. Host names are resolved here. Many workers join by a tree.
    #[allow(clippy::type_complexity)]
    fn join_all(
        &self,
        py: Python<'_>,
        cell: &PendingCall,
        workers: Vec<(u32, u64, Where, u64)>,
        trust: Trust,
        from_: String,
        bound: f64,
    ) -> PyResult<()> {
        let trust = self.dial_trust(trust)?;
        let wanted = workers
            .into_iter()
            .map(|(rank, host, at, agent)| Ok(Wanted { host: ProcUid(host), address: address(at)?, agent, rank, trust: trust.clone() }));
        let wanted = wanted.collect::<PyResult<Vec<_>>>()?;
        let call_id = cell.inner.call_id;
        if let Some(job) = self.gateway.job(self.node.uid) {
            gil::blocking(py, || self.gateway.join_all(&job, &from_, wanted, call_id, seconds(bound)));
        }
        Ok(())
    }

    /// The number of TLS handshakes that this process has completed.
    #[staticmethod]
    fn handshakes() -> u64 {
        net::trust::handshakes()
    }

    /// The relayed hosts of this client: it has no connection to them, and a relay forwards its frames.
    fn relayed_hosts(&self) -> Vec<u64> {
        self.gateway.job(self.node.uid).map_or(vec![], |j| j.relayed_hosts().into_iter().map(|h| h.0).collect())
    }

    /// Gives up a host that was expected: it is not going to join.
    fn give_up(&self, cell: &PendingCall, rank: u32, host: u64, why: String) {
        if let Some(job) = self.gateway.job(self.node.uid) {
            self.gateway.give_up(&job, ProcUid(host), cell.inner.call_id, rank, &why);
        }
    }

    /// Ends the agent of a host. The pending call gets an answer when the agent is about to end.
    fn shutdown(&self, host: u64) -> PyResult<PendingCall> {
        let host = ProcUid(host);
        let targets = Arc::from([(host, wire::MailboxId(0))]);
        let inner = self.node.calls.start(Mode::Gather, 1, targets);
        let peer = self.node.peers.peer(host);
        self.gateway.expect_end(host);
        peer.send_control(Control::Shutdown { call_id: inner.call_id });
        if peer.ended().is_some() {
            self.node.calls.fail_rank(&inner, 0, &peer);
        }
        Ok(PendingCall::new(&self.node, inner))
    }

    /// The reason why a host has ended for this client although its agent may still run; none for any other host.
    fn unknown_end(&self, host: u64) -> Option<String> {
        self.gateway.job(self.node.uid)?.host(ProcUid(host))?.unknown_end()
    }

    /// Decodes the answer of a join that has failed.
    #[staticmethod]
    fn join_failure(answer: &[u8]) -> PyResult<JoinFailure> {
        let decoded = wire::greeting::decode(answer).ok_or_else(|| PyValueError::new_err("the answer of a join is malformed"))?;
        Ok(JoinFailure(decoded))
    }

    /// Sends goodbyes to all other members, and leaves all jobs.
    fn close(&self, py: Python<'_>, bound: f64) {
        gil::blocking(py, || self.gateway.close(seconds(bound)));
    }

    /// The hosts of this client's job: id, name, pid, and why the host is lost (`None` if it is not).
    fn hosts(&self) -> Vec<(u64, String, u32, Option<String>)> {
        let job = self.gateway.job(self.node.uid);
        let describe = |h: Arc<runtime::gateway::Host>| (h.id.0, h.name(), h.info().pid, h.lost());
        job.map_or(vec![], |j| j.hosts().into_iter().map(describe).collect())
    }

    /// The number of clients that have work on this host, or use it as a gateway.
    fn clients(&self) -> usize {
        self.gateway.jobs().into_iter().filter(|j| !j.is_clients()).count()
    }

    /// The numbers of frames that this process has sent to other hosts: frames of casts, and frames of any kind.
    fn sent(&self) -> (u64, u64) {
        let jobs = self.gateway.jobs();
        let all = jobs.iter().flat_map(|j| j.hosts()).map(|h| h.session.sent.load(Ordering::Relaxed)).sum();
        (jobs.iter().map(|j| j.cast_counts().sent).sum(), all)
    }

    /// Renews the certificates of the hosts, as happens every 30 days: for tests.
    fn renew(&self, from_: &str) {
        if let Some(job) = self.gateway.job(self.node.uid) {
            self.gateway.renew_all(&job, from_);
        }
    }

    /// For tests: pauses the connections between these hosts and this one, and resumes those to other hosts. Hosts in `beside` pause their
    /// own connections to this host; here only the bulk streams to them are paused. The pending call is done when the procs of this host
    /// have paused theirs too.
    fn cut_off(&self, py: Python<'_>, hosts: Vec<u64>, beside: Vec<u64>) -> PendingCall {
        let uids = |all: Vec<u64>| all.into_iter().map(ProcUid).collect::<Vec<_>>();
        let (hosts, beside) = (uids(hosts), uids(beside));
        let inner = py.detach(|| {
            let procs = self.gateway.cut_off(&hosts, &beside);
            let targets = procs.iter().map(|proc| (*proc, wire::MailboxId(0))).collect();
            let cell = self.node.calls.start(Mode::Gather, procs.len(), targets);
            for (rank, proc) in (0..).zip(procs) {
                let peer = self.node.peers.peer_unlinked(proc).0;
                peer.send_control(Control::CutOff { hosts: [&hosts[..], &beside].concat(), call_id: cell.call_id, rank });
                if peer.ended().is_some() {
                    self.node.calls.fail_rank(&cell, rank, &peer);
                }
            }
            cell
        });
        PendingCall::new(&self.node, inner)
    }

    /// Breaks the connection to a host, as a network may do: for tests.
    fn cut(&self, host: u64) {
        for job in self.gateway.jobs() {
            if let Some(h) = job.host(ProcUid(host)) {
                h.session.cut();
            }
        }
    }
}

impl Hosts {
    /// The trust for dialling hosts, which is made once for each secret.
    fn dial_trust(&self, trust: Trust) -> PyResult<Arc<DialTrust>> {
        let mut known = lock(&self.trusts);
        if let Some((_, found)) = known.iter().find(|(t, _)| *t == trust) {
            return Ok(found.clone());
        }
        let made = Arc::new(DialTrust::new_client(JobId(self.node.uid.0), trust.policy()?).map_err(failed)?);
        known.push((trust, made.clone()));
        Ok(made)
    }
}
