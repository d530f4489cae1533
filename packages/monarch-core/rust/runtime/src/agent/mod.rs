//! The host agent: starts, links, watches and ends procs.
//!
//! The agent of the client's host is a part of the client. Procs have no listening socket: a proc that sends to another proc of the host
//! for the first time requests a link from its agent, and the agent makes a socket pair and sends each proc an end.
//!
//! `Agent` is the table of the components, without logic of its own. A component has references to those that it needs, which stand before
//! it in this table; where one reports to a later one, it has a trait or a function for that.
//!
//! | file | noun |
//! |---|---|
//! | `options` | the values that the Python side gives to the agent |
//! | `procs` | the table of this host's procs, and of the relations between processes |
//! | `zygote` | the interpreter that procs are forked from |
//! | `simulated` | procs that are nodes of this process, for tests |
//! | `starter` | the processes of procs, by the zygote or simulated |
//! | `proc_jobs` | the jobs of the processes of this host |
//! | `output` | lines that procs print |
//! | `aggregation` | counts of lines that are equal up to numbers |
//! | `viewer` | lines that are shown at the client too |
//! | `capture` | files with the output of procs |
//! | `console` | the destination of the lines of procs |
//! | `cgroup` | the procs that the kernel killed for lack of memory |
//! | `recordings` | the rings of the processes of a host, which outlive them |
//! | `cleanup` | procs that end while an actor runs its `__cleanup__` |
//! | `proc_ends` | the ends of procs |
//! | `proc_links` | sockets between procs of a host |
//! | `external` | external processes |
//! | `spawns` | the start of procs |
//! | `process_table` | the state of all procs of a host, for inspections |
//! | `kernel_state` | the state of a process in the kernel |
//! | `processor` | the processor time of a process |
//! | `responsiveness` | the responsiveness check of the Python interpreter of a proc |
//! | `watch` | the periodic check of the procs |
//! | `role` | the agent as other components know it |

pub mod aggregation;
pub mod capture;
pub mod cgroup;
mod cleanup;
mod console;
mod external;
mod kernel_state;
mod options;
pub mod output;
mod proc_ends;
mod proc_jobs;
mod proc_links;
pub mod process_table;
mod processor;
mod procs;
pub mod recordings;
pub mod responsiveness;
mod role;
pub mod simulated;
mod spawns;
mod starter;
pub mod viewer;
mod watch;
pub mod zygote;

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use self::cgroup::Cgroups;
use self::console::Console;
use self::external::ExternalProcesses;
pub use self::options::AgentOptions;
use self::output::Output;
use self::proc_ends::ProcEnds;
use self::proc_jobs::ProcJobs;
use self::proc_links::ProcLinks;
use self::process_table::HostInspections;
use self::procs::Procs;
use self::recordings::Recordings;
use self::spawns::Spawns;
use self::starter::{ProcReports, Starter};
use self::watch::Watch;
use crate::local::Local;
use crate::node::Node;

/// The agent of a host. The node of the client or of the worker owns it.
pub struct Agent {
    local: Arc<Local>,
    options: Arc<AgentOptions>,
    procs: Arc<Procs>,
    starter: Arc<Starter>,
    jobs: Arc<ProcJobs>,
    console: Arc<Console>,
    recordings: Arc<Recordings>,
    ends: Arc<ProcEnds>,
    links: Arc<ProcLinks>,
    externals: Arc<ExternalProcesses>,
    spawns: Arc<Spawns>,
    inspections: Arc<HostInspections>,
    watch: Arc<Watch>,
}

impl Agent {
    /// Makes the agent of a host in a process, and gives it this role.
    pub fn new(node: &Arc<Node>, options: AgentOptions) -> io::Result<Arc<Self>> {
        let (local, procs, options) = (Local::new(node), Arc::<Procs>::default(), Arc::new(options));
        let cgroups = Arc::new(Cgroups::here());
        let starter = Arc::new(Starter {
            local: local.clone(),
            options: options.clone(),
            procs: procs.clone(),
            launcher: OnceLock::new(),
            reports: OnceLock::new(),
        });
        let jobs = Arc::new(ProcJobs { local: local.clone(), procs: procs.clone(), gateway: OnceLock::new() });
        let console = Arc::new(Console {
            local: local.clone(),
            options: options.clone(),
            procs: procs.clone(),
            jobs: jobs.clone(),
            output: Output::new()?,
            log_dir: Mutex::default(),
            consoles: Mutex::new(options.consoles),
        });
        let recordings = Arc::new(Recordings {
            local: local.clone(),
            procs: procs.clone(),
            jobs: jobs.clone(),
            starter: starter.clone(),
            wanted: AtomicU32::new(0),
            rings: Mutex::default(),
        });
        let ends = Arc::new(ProcEnds {
            local: local.clone(),
            options: options.clone(),
            procs: procs.clone(),
            starter: starter.clone(),
            console: console.clone(),
            cgroups: cgroups.clone(),
            recordings: recordings.clone(),
        });
        let links = Arc::new(ProcLinks { local: local.clone(), procs: procs.clone(), starter: starter.clone(), ends: ends.clone() });
        let externals = Arc::new(ExternalProcesses { local: local.clone(), procs: procs.clone(), control_socket: Mutex::default() });
        let spawns = Arc::new(Spawns {
            local: local.clone(),
            options: options.clone(),
            procs: procs.clone(),
            starter: starter.clone(),
            console: console.clone(),
            cgroups: cgroups.clone(),
            recordings: recordings.clone(),
            ends: ends.clone(),
            links: links.clone(),
            externals: externals.clone(),
        });
        let inspections = Arc::new(HostInspections {
            local: local.clone(),
            options: options.clone(),
            procs: procs.clone(),
            jobs: jobs.clone(),
            starter: starter.clone(),
            recordings: recordings.clone(),
            born: Instant::now(),
            open: Mutex::default(),
            next: Default::default(),
            notes: Mutex::default(),
        });
        let watch = Arc::new(Watch { local: local.clone(), procs: procs.clone(), cgroups, inspections: inspections.clone() });
        let reports: Arc<dyn ProcReports> = ends.clone();
        let _: Result<(), Weak<dyn ProcReports>> = starter.reports.set(Arc::downgrade(&reports));
        let agent = Arc::new(Agent {
            local,
            options,
            procs,
            starter,
            jobs,
            console,
            recordings,
            ends,
            links,
            externals,
            spawns,
            inspections,
            watch,
        });
        node.roles.set_agent(agent.clone());
        Ok(agent)
    }
}
