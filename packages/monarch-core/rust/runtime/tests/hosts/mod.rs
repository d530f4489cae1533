//! Hosts in one process: each has an agent with its gateway, and procs that are nodes on the poller of their agent.
//!
//! The client's host has id 1, which is also the uid of the client. The agents of the other hosts have uids of their own. In the client's
//! job, host `h` has the id `h * 100`, and its procs have uids like `h * 100 + 1`. Connections between hosts are real ones, over loopback.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::address::Address;
use net::trust::{DialTrust, JobId, Policy};
use net::{Poller, RecvPart, Timeline, WaitEnd, Waiter};
use runtime::agent::AgentOptions;
use runtime::agent::simulated::Launcher;
use runtime::gateway::{Job, Wanted};
use runtime::mailboxes::mailbox::{Consumer, Delivery};
use runtime::peers::peer::{Head, Sent};
use runtime::transfers::payload::OutPart;
use runtime::{Agent, Gateway, Incoming, Mailbox, Mode, Node, Outcome, Payload, PendingCall, SystemEvent};
use wire::control::ProcPlan;
use wire::exit::{ExitReason, ProcEnd};
use wire::greeting::JobSettings;
use wire::{CallId, Control, MailboxId, ProcUid};

/// Limit of every wait: a test that waits longer has failed.
const HANG: Duration = Duration::from_secs(30);
/// The kind of a request to the Python side that only marks a place: the frames sent before it have been handled.
const MARK: u16 = 77;
/// The group of threads that ends with a proc: these procs have no threads of their own.
const NO_THREADS: u64 = u64::MAX;
/// The mailbox of every actor here.
pub const BOX: MailboxId = MailboxId(10);
pub const CLIENT: ProcUid = ProcUid(1);

/// A node, and the waiter of its system queue.
pub struct Process {
    pub node: Arc<Node>,
    events: Arc<Waiter>,
}

impl Process {
    fn new(node: Arc<Node>) -> Process {
        let events = node.poller.waiter();
        node.system.set_waiter(events.clone());
        Process { node, events }
    }

    pub fn uid(&self) -> ProcUid {
        self.node.uid
    }

    fn wait(&self, waiter: &Waiter, ready: impl FnMut() -> bool) {
        // On simulated time a deadline would pass at once; there, the timeline reports a wait that cannot end.
        let deadline = self.node.poller.timeline().is_none().then(|| Instant::now() + HANG);
        assert_eq!(self.node.poller.wait(waiter, deadline, ready), WaitEnd::Ready);
    }

    pub fn event(&self) -> SystemEvent {
        self.wait(&self.events, || !self.node.system.is_empty());
        self.node.system.pop().unwrap()
    }

    /// Waits for the next event for which `wanted` returns a value, and returns this value. Other events before it are dropped.
    pub fn expect<T>(&self, mut wanted: impl FnMut(SystemEvent) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.event()) {
                return found;
            }
        }
    }

    /// Waits for the next report of ends; the processes in it, with their ends.
    pub fn ends(&self) -> Vec<(ProcUid, ProcEnd)> {
        self.expect(|e| if let SystemEvent::ProcsEnded { ends } = e { Some(ends) } else { None })
    }

    /// Waits for the report of this process's end.
    pub fn end_of(&self, uid: ProcUid) -> ProcEnd {
        self.expect(|e| match e {
            SystemEvent::ProcsEnded { ends } => ends.into_iter().find(|(ended, _)| *ended == uid).map(|(_, end)| end),
            _ => None,
        })
    }

    /// Waits until this process has handled all frames that `from` has sent. Returns the events that they caused here.
    pub fn settle(&self, from: &Process) -> Vec<SystemEvent> {
        self.settle_as(self.uid(), from)
    }

    /// The same for the agent of a host, which has another id in the job of `from`.
    pub fn settle_as(&self, name: ProcUid, from: &Process) -> Vec<SystemEvent> {
        from.node.replies.send_system(name, MARK, CallId::NONE, vec![]);
        let mut before = Vec::new();
        loop {
            match self.event() {
                SystemEvent::Request { kind: MARK, .. } => return before,
                e => before.push(e),
            }
        }
    }

    pub fn call(&self, mode: Mode, targets: &[ProcUid]) -> Arc<PendingCall> {
        self.node.calls.start(mode, targets.len(), targets.iter().map(|uid| (*uid, BOX)).collect())
    }

    /// Sends a message with these bytes as parts. Parts of 64 KiB and more are in shared memory.
    pub fn send(&self, to: ProcUid, call_id: CallId, parts: &[&[u8]]) -> Sent {
        let payload = Payload::new(&self.node.arena, parts.iter().map(|bytes| OutPart { bytes, readonly: true })).unwrap();
        let head = Head { dest: BOX, sender: MailboxId(5), call_id, method: b"go", ..Head::default() };
        self.node.messages.send(&self.node.peers.peer(to), &head, &payload, Vec::new, true)
    }

    /// Waits until the call is over; the answer of a rank.
    pub fn answer(&self, cell: &PendingCall, rank: u32) -> Arc<Outcome> {
        let waiter = self.node.poller.waiter();
        cell.add_waiter(&waiter);
        self.wait(&waiter, || cell.is_done(0));
        cell.outcome(rank as usize).expect("an answer of this rank")
    }

    /// Adds an actor that takes messages from the mailbox from now on.
    pub fn actor(&self) -> Actor<'_> {
        let (mailbox, waiter) = (self.node.mailboxes.get(BOX).unwrap(), self.node.poller.waiter());
        mailbox.set_consumer(Consumer::Thread(waiter.clone()));
        Actor { process: self, mailbox, waiter }
    }
}

pub struct Actor<'a> {
    process: &'a Process,
    mailbox: Arc<Mailbox>,
    waiter: Arc<Waiter>,
}

impl Actor<'_> {
    pub fn next(&self) -> Incoming {
        loop {
            match self.mailbox.pop() {
                Some(Delivery::Message(m)) => {
                    self.process.node.messages.handled(&self.mailbox, m.from, m.cost());
                    return m;
                }
                Some(Delivery::Event(_)) => {}
                None => self.process.wait(&self.waiter, || !self.mailbox.is_empty()),
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.mailbox.is_empty()
    }
}

/// The bytes of all parts of a message or an answer.
pub fn bytes(parts: &[RecvPart]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.bytes().unwrap().iter().copied()).collect()
}

pub fn end_of_outcome(outcome: &Outcome) -> ProcEnd {
    postcard::from_bytes(&bytes(&outcome.parts)).unwrap()
}

pub fn killed() -> ExitReason {
    ExitReason::Signal { signal: libc::SIGKILL, core_dumped: false }
}

/// A host: an agent whose procs are nodes of this process.
pub struct Host {
    pub process: Process,
    pub agent: Arc<Agent>,
    pub gateway: Arc<Gateway>,
    launcher: Arc<Launcher>,
    io: Option<std::thread::JoinHandle<()>>,
}

impl Host {
    /// A host on real time.
    pub fn start(uid: u64) -> Host {
        Host::on(Poller::new().unwrap(), uid)
    }

    /// A host on simulated time. Time passes only while this thread waits for an event, and without a delay.
    pub fn simulated(uid: u64) -> Host {
        let timeline = Timeline::new(0);
        timeline.enroll(0);
        timeline.enter(0, true);
        Host::on(Poller::simulated(timeline).unwrap(), uid)
    }

    fn on(poller: Arc<Poller>, uid: u64) -> Host {
        let io = std::thread::spawn({
            let poller = poller.clone();
            move || poller.run()
        });
        let node = Node::on(poller, ProcUid(uid), ProcUid(uid));
        let options = AgentOptions { host: format!("host{uid}"), zygote: vec![], env: vec![], tail_lines: 10, consoles: [-1; 2] };
        let agent = Agent::new(&node, options).unwrap();
        let launcher = Launcher::new(&node);
        agent.simulate(launcher.clone());
        let gateway = agent.open_gateway().unwrap();
        Host { process: Process::new(node), agent, gateway, launcher, io: Some(io) }
    }

    /// The time that has passed on a simulated host.
    pub fn elapsed(&self) -> Duration {
        self.process.node.poller.timeline().unwrap().elapsed()
    }

    /// Requests procs for an owner. They are not started yet.
    pub fn ask_for(&self, owner: ProcUid, uids: &[ProcUid], plan: &ProcPlan) {
        let procs = uids.iter().map(|uid| (*uid, plan.clone())).collect();
        self.agent.control(owner, Control::SpawnProcs { owner, procs });
    }

    /// Starts the next proc that was requested; it reports to its agent.
    pub fn started(&self) -> Process {
        let uid = self.process.expect(|e| if let SystemEvent::Launch { uid, .. } = e { Some(uid) } else { None });
        let (node, link) = self.launcher.node(uid, NO_THREADS).unwrap();
        let agent = node.peers.peer_unlinked(self.process.uid()).0;
        agent.link.attach(link).unwrap();
        agent.send_control(Control::Hello { version: 0, uid, pid: std::process::id() });
        let proc = Process::new(node);
        self.process.settle(&proc);
        proc
    }

    /// Starts a proc of this process, which is its owner and its agent.
    pub fn proc(&self, uid: u64) -> Process {
        self.ask_for(self.process.uid(), &[ProcUid(uid)], &ProcPlan::default());
        self.started()
    }

    /// The process of a proc ends by itself, with this wait status.
    pub fn exits(&self, proc: &Process, status: i32) {
        self.launcher.exited(proc.uid(), status);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.gateway.close(Duration::ZERO);
        self.process.node.peers.all().iter().for_each(|p| p.link.close());
        let poller = &self.process.node.poller;
        if let Some(timeline) = poller.timeline() {
            timeline.leave();
        }
        poller.stop();
        if let Some(io) = self.io.take() {
            io.join().unwrap();
        }
    }
}

/// A client and workers that have joined its job.
pub struct Cluster {
    pub client: Host,
    pub workers: Vec<Host>,
    pub job: Arc<Job>,
    policy: Policy,
    trust: Arc<DialTrust>,
}

/// The id in the client's job of the worker with this index.
pub fn host_id(worker: usize) -> ProcUid {
    ProcUid((worker as u64 + 2) * 100)
}

impl Cluster {
    pub fn of(workers: usize) -> Cluster {
        let mut cluster = Cluster::with(Policy::Insecure);
        for index in 0..workers {
            let port = cluster.add_worker();
            cluster.client.gateway.announce(&cluster.job, &[host_id(index)]);
            assert_eq!(cluster.join(host_id(index), port, 0).status, wire::Status::Ok);
        }
        cluster
    }

    /// A cluster without workers. The client and workers that are added authenticate each other with this policy.
    pub fn with(policy: Policy) -> Cluster {
        Cluster::with_settings(policy, JobSettings { loss_ms: 60_000, reconnect_ms: 60_000, lease_ms: 0 })
    }

    pub fn with_settings(policy: Policy, settings: JobSettings) -> Cluster {
        Cluster::with_client(Host::start(CLIENT.0), policy, settings)
    }

    pub fn with_client(client: Host, policy: Policy, settings: JobSettings) -> Cluster {
        let job = client.gateway.start_job(settings).unwrap();
        let trust = Arc::new(DialTrust::new_client(JobId(CLIENT.0), policy.clone()).unwrap());
        Cluster { client, workers: Vec::new(), job, policy, trust }
    }

    /// Adds a worker that has not joined. Returns the port on which it listens.
    pub fn add_worker(&mut self) -> u16 {
        let worker = Host::start(self.workers.len() as u64 + 2);
        let port = worker.gateway.listen(&Address::Tcp { host: "127.0.0.1".into(), port: 0 }, self.policy.clone()).unwrap();
        self.workers.push(worker);
        port
    }

    /// Joins the worker at this port with this id, if its agent has the uid `agent`; 0: any agent.
    pub fn join(&self, host: ProcUid, port: u16, agent: u64) -> Arc<Outcome> {
        self.join_within(self.wanted(host, port, agent, 0), HANG)
    }

    /// The same for a worker that has `bound` to be ready.
    pub fn join_within(&self, wanted: Wanted, bound: Duration) -> Arc<Outcome> {
        let client = &self.client.process;
        let cell = client.node.calls.start(Mode::Gather, 1, Arc::default());
        self.client.gateway.join(&self.job, "a test", wanted, cell.call_id, bound);
        client.answer(&cell, 0)
    }

    pub fn wanted(&self, host: ProcUid, port: u16, agent: u64, rank: u32) -> Wanted {
        Wanted { host, address: Address::Tcp { host: "127.0.0.1".into(), port }, agent, rank, trust: self.trust.clone() }
    }

    /// Joins the workers at these ports together. Returns the outcome of each.
    pub fn attach(&self, ports: &[u16]) -> Vec<Arc<Outcome>> {
        let client = &self.client.process;
        let cell = client.node.calls.start(Mode::Gather, ports.len(), Arc::default());
        let hosts: Vec<ProcUid> = (0..ports.len()).map(host_id).collect();
        self.client.gateway.announce(&self.job, &hosts);
        let wanted = hosts.iter().zip(ports).zip(0..).map(|((host, port), rank)| self.wanted(*host, *port, 0, rank)).collect();
        self.client.gateway.join_all(&self.job, "a test", wanted, cell.call_id, HANG);
        (0..ports.len() as u32).map(|rank| client.answer(&cell, rank)).collect()
    }

    /// Makes the client reach hosts through the worker at this port from now on. The worker is not in the client's job.
    pub fn use_gateway(&self, port: u16) -> Arc<Outcome> {
        let (client, settings) = (&self.client.process, JobSettings { loss_ms: 60_000, reconnect_ms: 60_000, lease_ms: 0 });
        let job = self.client.gateway.start_gateway_job(settings).unwrap();
        let cell = client.node.calls.start(Mode::Gather, 1, Arc::default());
        let trust = Arc::new(DialTrust::new_client(JobId(job.id.0), self.policy.clone()).unwrap());
        let wanted = Wanted { trust, ..self.wanted(ProcUid(77), port, 0, 0) };
        self.client.gateway.use_gateway(&job, "the gateway", "a test", wanted, cell.call_id, HANG);
        client.answer(&cell, 0)
    }

    /// Starts a proc of a worker, owned by the client.
    pub fn proc(&self, worker: usize, uid: u64) -> Process {
        self.proc_on(host_id(worker), worker, uid)
    }

    /// The same for a worker that has this id.
    pub fn proc_on(&self, host: ProcUid, worker: usize, uid: u64) -> Process {
        let procs = vec![(ProcUid(uid), ProcPlan::default())];
        // A client that has requested a proc knows on which host the proc is.
        self.client.process.node.peers.route(ProcUid(uid), host, CLIENT);
        self.client.process.node.peers.peer(host).send_control(Control::SpawnProcs { owner: CLIENT, procs });
        self.workers[worker].started()
    }
}
