//! This process as a member of jobs that span hosts.

use std::sync::Arc;
use std::time::Duration;

use net::address::Address;
use net::trust::Policy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use runtime::gateway::Wanted;
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
#[derive(FromPyObject)]
pub struct Trust {
    kind: String,
    secret: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Trust {
    fn policy(self) -> PyResult<Policy> {
        let _ = (&self.kind, &self.secret, &self.key, &self.ca);
        Ok(Policy::Insecure)
    }
}

#[pyclass(frozen)]
pub struct Hosts {
    node: Arc<Node>,
    gateway: Arc<Gateway>,
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX / 4)
}

#[pymethods]
impl Hosts {
    #[new]
    fn new(process: &Process) -> PyResult<Self> {
        gil::check_not_forked()?;
        let node = process.node.clone();
        let gateway = node.open_gateway();
        Ok(Hosts { node, gateway })
    }

    /// Lets clients in; gives the port.
    fn listen(&self, at: Where, trust: Trust) -> PyResult<u16> {
        Ok(self.gateway.listen(&address(at)?, trust.policy()?)?)
    }

    /// Takes hosts (id in this job, address, uid of the agent or 0) into this client's job, within `bound` seconds. The cell gets an
    /// answer from each: JSON of what it says of itself, or an error that says why it did not join. Looks names up.
    fn attach(
        &self,
        py: Python<'_>,
        hosts: Vec<(u64, Where, u64)>,
        trust: Trust,
        settings: (f64, f64, f64),
        from: String,
        bound: f64,
    ) -> PyResult<CallCell> {
        let wanted: PyResult<Vec<Wanted>> =
            hosts.into_iter().map(|(host, at, agent)| Ok(Wanted { host: ProcUid(host), address: address(at)?, agent })).collect();
        let wanted = wanted?;
        let ms = |s: f64| seconds(s).as_millis() as u64;
        let settings = JobSettings { loss_ms: ms(settings.0), reconnect_ms: ms(settings.1), lease_ms: ms(settings.2) };
        let job = self.gateway.start_job(settings, trust.policy()?).map_err(failed)?;
        let inner = self.node.new_cell(Mode::Gather, wanted.len(), Arc::default());
        let slot = inner.slot;
        gil::blocking(py, || self.gateway.join(&job, &from, wanted, slot, seconds(bound)));
        Ok(CallCell { node: self.node.clone(), inner })
    }

    /// Has the agent of a host end; the cell gets an answer when it is about to.
    fn shutdown(&self, host: u64) -> PyResult<CallCell> {
        let host = ProcUid(host);
        let targets = Arc::from([(host, wire::MailboxId(0))]);
        let inner = self.node.new_cell(Mode::Gather, 1, targets);
        let peer = self.node.peer(host);
        peer.send_control(Control::Shutdown { slot: inner.slot });
        if peer.ended().is_some() {
            self.node.fail_rank(&inner, 0, &peer);
        }
        Ok(CallCell { node: self.node.clone(), inner })
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

    /// Breaks the connection to a host, as a network does now and then: for tests.
    fn cut(&self, host: u64) {
        for job in self.gateway.jobs() {
            if let Some(h) = job.host(ProcUid(host)) {
                h.trunk.cut();
            }
        }
    }
}
