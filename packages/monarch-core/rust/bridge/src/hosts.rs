//! This process as a member of jobs that span hosts.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::address::Address;
use net::lock::lock;
use net::trust::{DialTrust, JobId, Policy, Secret, SitePki};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use runtime::gateway::{self, Wanted};
use runtime::{Gateway, Mode, Node};
use wire::greeting::JobSettings;
use wire::{Control, ProcUid};

use crate::cell::CallCell;
use crate::gil;
use crate::process::{Process, failed};

/// `("tcp", host, port)`, `("unix", name, 0)` or `("fd", "", number)`.
type Where = (String, String, i32);

fn address((kind, name, number): Where) -> PyResult<Address> {
    Ok(match kind.as_str() {
        "tcp" => {
            let port = u16::try_from(number).map_err(|_| PyValueError::new_err(format!("no such port: {number}")))?;
            Address::Tcp { host: name, port }
        }
        "unix" => Address::Unix(name),
        "fd" => Address::Adopted(number),
        other => return Err(PyValueError::new_err(format!("no such kind of address: {other}"))),
    })
}

/// What an agent and its clients know each other by.
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

#[pyclass(frozen)]
pub struct Hosts {
    node: Arc<Node>,
    gateway: Arc<Gateway>,
    /// What hosts of this client's job are dialled with: one authority for all that have the same secret.
    trusts: Mutex<Vec<(Trust, Arc<DialTrust>)>>,
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX / 4)
}

fn job_settings((loss, reconnect, lease): (f64, f64, f64)) -> JobSettings {
    let ms = |s: f64| seconds(s).as_millis() as u64;
    JobSettings { loss_ms: ms(loss), reconnect_ms: ms(reconnect), lease_ms: ms(lease) }
}

#[pymethods]
impl Hosts {
    #[new]
    fn new(process: &Process) -> PyResult<Self> {
        gil::check_not_forked()?;
        let node = process.node.clone();
        let gateway = node.open_gateway();
        Ok(Hosts { node, gateway, trusts: Mutex::default() })
    }

    /// Lets clients in; gives the port.
    fn listen(&self, at: Where, trust: Trust) -> PyResult<u16> {
        Ok(self.gateway.listen(&address(at)?, trust.policy()?)?)
    }

    /// From now on all hosts are reached through the agent at this address, which `text` names: at least, once the cell has got an
    /// answer, as one that joins; see `announce` and `join` for the others.
    #[allow(clippy::too_many_arguments)]
    fn go_through(
        &self,
        py: Python<'_>,
        text: &str,
        at: Where,
        agent: u64,
        trust: Trust,
        who: &str,
        settings: (f64, f64, f64),
        bound: f64,
    ) -> PyResult<CallCell> {
        let (address, policy) = (address(at)?, trust.policy()?);
        let job = self.gateway.start_way(job_settings(settings));
        let trust = Arc::new(DialTrust::new_client(JobId(job.id.0), policy).map_err(failed)?);
        let inner = self.node.new_cell(Mode::Gather, 1, Arc::default());
        let (slot, bound) = (inner.slot, seconds(bound));
        let wanted = Wanted { host: ProcUid(gateway::random()), address, agent, rank: 0, trust };
        gil::blocking(py, || self.gateway.go_through(&job, text, who, wanted, slot, bound));
        Ok(CallCell::new(&self.node, inner))
    }

    /// The gateway has not joined: hosts are dialled again.
    fn forget_way(&self) {
        self.gateway.forget_way();
    }

    /// The gateway: its id, address as given, why it is lost or nothing.
    fn way(&self) -> Option<(u64, String, Option<String>)> {
        self.gateway.way().map(|w| (w.host.id.0, w.address.clone(), w.host.lost()))
    }

    /// The agent of this host is the gateway, without which no other is reached.
    fn is_way(&self, host: u64) -> bool {
        let agent = |h: &runtime::gateway::Host| h.place().agent;
        let found = self.gateway.job(self.node.uid).and_then(|j| j.host(ProcUid(host)));
        found.zip(self.gateway.way()).is_some_and(|(h, w)| agent(&h) != 0 && agent(&h) == agent(&w.host))
    }

    /// Hosts of these ids are going to join this client's job; `settings` are the seconds of `host_loss_timeout`,
    /// `channel_reconnect_timeout` and the lease (0: none). The cell gets an answer from each, by its place: JSON of what it says of
    /// itself, or an error that says why it did not join.
    fn announce(&self, hosts: Vec<u64>, settings: (f64, f64, f64)) -> PyResult<CallCell> {
        let job = self.gateway.start_job(job_settings(settings)).map_err(failed)?;
        let ids: Vec<ProcUid> = hosts.into_iter().map(ProcUid).collect();
        self.gateway.announce(&job, &ids);
        let inner = self.node.new_cell(Mode::Gather, ids.len(), Arc::default());
        Ok(CallCell::new(&self.node, inner))
    }

    /// Takes those in that are known by the same, within `bound` seconds: of each its place among them, id, address, and the uid of its
    /// agent or 0. Looks names up. Many join by a tree.
    #[allow(clippy::type_complexity)]
    fn join_all(
        &self,
        py: Python<'_>,
        cell: &CallCell,
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
        let slot = cell.inner.slot;
        if let Some(job) = self.gateway.job(self.node.uid) {
            gil::blocking(py, || self.gateway.join_all(&job, &from_, wanted, slot, seconds(bound)));
        }
        Ok(())
    }

    /// TLS handshakes that this process has completed.
    #[staticmethod]
    fn handshakes() -> u64 {
        net::trust::handshakes()
    }

    /// Hosts of this client that it has no connection to: what it says to them others carry.
    fn below(&self) -> Vec<u64> {
        self.gateway.job(self.node.uid).map_or(vec![], |j| j.hosts_below().into_iter().map(|h| h.0).collect())
    }

    /// A host that was expected is not going to join.
    fn give_up(&self, cell: &CallCell, rank: u32, host: u64, why: String) {
        if let Some(job) = self.gateway.job(self.node.uid) {
            self.gateway.give_up(&job, ProcUid(host), cell.inner.slot, rank, &why);
        }
    }

    /// Has the agent of a host end; the cell gets an answer when it is about to.
    fn shutdown(&self, host: u64) -> PyResult<CallCell> {
        let host = ProcUid(host);
        let targets = Arc::from([(host, wire::MailboxId(0))]);
        let inner = self.node.new_cell(Mode::Gather, 1, targets);
        let peer = self.node.peer(host);
        self.gateway.expect_end(host);
        peer.send_control(Control::Shutdown { slot: inner.slot });
        if peer.ended().is_some() {
            self.node.fail_rank(&inner, 0, &peer);
        }
        Ok(CallCell::new(&self.node, inner))
    }

    /// Says goodbye to all others, and is part of nothing any more.
    fn close(&self, py: Python<'_>, bound: f64) {
        gil::blocking(py, || self.gateway.close(seconds(bound)));
    }

    /// The hosts of this client's job: id, name, pid, why it is lost or nothing.
    fn hosts(&self) -> Vec<(u64, String, u32, Option<String>)> {
        let job = self.gateway.job(self.node.uid);
        let describe = |h: Arc<runtime::gateway::Host>| (h.id.0, h.name(), h.place().pid, h.lost());
        job.map_or(vec![], |j| j.hosts().into_iter().map(describe).collect())
    }

    /// So many clients have work here, or use this host as a gateway.
    fn clients(&self) -> usize {
        self.gateway.jobs().into_iter().filter(|j| !j.is_clients()).count()
    }

    /// What this process has sent to other hosts: frames of casts, and frames of any kind.
    fn sent(&self) -> (u64, u64) {
        let jobs = self.gateway.jobs();
        let all = jobs.iter().flat_map(|j| j.hosts()).map(|h| h.trunk.sent.load(Ordering::Relaxed)).sum();
        (jobs.iter().map(|j| j.cast_counts().sent).sum(), all)
    }

    /// Has hosts get other certificates, as they do every 30 days: for tests.
    fn renew(&self, from_: &str) {
        if let Some(job) = self.gateway.job(self.node.uid) {
            self.gateway.renew_all(&job, from_);
        }
    }

    /// From now on nothing goes between these hosts and this one, and between others again; those `beside` cut themselves off, but for
    /// memory: for tests. The cell is done when that is so for the procs here too.
    fn cut_off(&self, py: Python<'_>, hosts: Vec<u64>, beside: Vec<u64>) -> CallCell {
        let uids = |all: Vec<u64>| all.into_iter().map(ProcUid).collect::<Vec<_>>();
        let (hosts, beside) = (uids(hosts), uids(beside));
        let inner = py.detach(|| {
            let procs = self.gateway.cut_off(&hosts, &beside);
            let targets = procs.iter().map(|proc| (*proc, wire::MailboxId(0))).collect();
            let cell = self.node.new_cell(Mode::Gather, procs.len(), targets);
            for (rank, proc) in (0..).zip(procs) {
                let peer = self.node.peer_unlinked(proc).0;
                peer.send_control(Control::CutOff { hosts: [&hosts[..], &beside].concat(), slot: cell.slot, rank });
                if peer.ended().is_some() {
                    self.node.fail_rank(&cell, rank, &peer);
                }
            }
            cell
        });
        CallCell::new(&self.node, inner)
    }

    /// Breaks the connection to a host, as a network does now and then: for tests.
    fn cut(&self, host: u64) {
        for job in self.gateway.jobs() {
            if let Some(h) = job.host(ProcUid(host)) {
                h.trunk.cut();
            }
        }
    }
}

impl Hosts {
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
