//! The procs that the kernel killed because memory had run out.
//!
//! A wait status does not show the cause: the OOM killer sends an ordinary SIGKILL. Before it sends the signal, the kernel counts the kill
//! in the memory cgroup of its victim, whichever limit was hit. The agent therefore reads the counter when a proc starts, and again when a
//! proc ends by SIGKILL: a kill in the counter that explains no other end explains this one. If two processes in one cgroup are killed at
//! the same moment, and a user has killed one of them, the two can be mistaken for each other; no record of the kernel distinguishes them.
//!
//! A process may be moved to another cgroup, by its own command or by another process, and the agent is not notified of that. With version
//! 1 of the interface, a killed process is shown in the root cgroup until it is reaped, so its cgroup has to be known before. The agent
//! therefore reads the cgroup of a proc when it is started, when it has connected, and at each periodic check (`watch`). A kill that
//! follows a move within one period is reported as `signal`, like a kill by a user. On a host without the memory controller, no end is
//! explained.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use net::lock::lock;
use wire::exit::ExitReason;

/// The two versions of the kernel's interface. Both may be mounted, and then the memory controller is in version 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    One,
    Two,
}

/// The mount point of the tree of memory cgroups, or of a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    pub version: Version,
    /// The cgroup that is the root of the mounted part.
    pub root: String,
    pub at: PathBuf,
}

impl Mount {
    /// Finds the mount point in the text of `/proc/self/mountinfo`.
    pub fn find(mountinfo: &str) -> Option<Self> {
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(Self::parse).collect();
        let of = |version| mounts.iter().find(|m| m.version == version).cloned();
        of(Version::One).or_else(|| of(Version::Two))
    }

    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let version = match (kind.next()?, kind.nth(1)?) {
            ("cgroup", options) if options.split(',').any(|o| o == "memory") => Version::One,
            ("cgroup2", _) => Version::Two,
            _ => return None,
        };
        let mut fields = place.split(' ').skip(3);
        Some(Mount { version, root: fields.next()?.to_owned(), at: fields.next()?.into() })
    }

    /// The memory cgroup in the text of `/proc/<pid>/cgroup`.
    pub fn cgroup_of<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let ours = match self.version {
                Version::One => controllers.split(',').any(|c| c == "memory"),
                Version::Two => number == "0",
            };
            ours.then_some(path)
        })
    }

    /// The folders of a cgroup and of its ancestors within the mounted part, innermost first, each with the name of its cgroup.
    pub fn folders(&self, cgroup: &str) -> Vec<(String, PathBuf)> {
        let Ok(inside) = Path::new(cgroup).strip_prefix(&self.root) else { return Vec::new() };
        // The components are joined one by one: an empty path would add a slash at the end.
        let under = |base: &Path, p: &Path| base.components().chain(p.components()).collect::<PathBuf>();
        let name = |p: &Path| under(Path::new(&self.root), p).to_string_lossy().into_owned();
        inside.ancestors().map(|p| (name(p), under(&self.at, p))).collect()
    }
}

/// The number that follows a key, in lines of `key number`; with an empty key, the whole text as a number.
pub fn number(text: &str, key: &str) -> Option<u64> {
    if key.is_empty() {
        return text.trim().parse().ok();
    }
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The state of a cgroup's own limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The number of allocations that failed because of the limit.
    Hits(u64),
    /// Version 1 only shows whether the limit was ever reached.
    Reached(bool),
}

impl Limit {
    fn was_hit_since(self, before: Limit) -> bool {
        match (self, before) {
            (Limit::Hits(now), Limit::Hits(before)) => now > before,
            (Limit::Reached(now), _) => now,
            _ => false,
        }
    }
}

/// The kernel's counters of one cgroup.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// The kills in the cgroup for lack of memory.
    pub kills: u64,
    /// The limits of the cgroup and of its ancestors, innermost first.
    pub limits: Vec<Limit>,
}

/// Decides which ends of processes the counters explain. It does no I/O.
#[derive(Default, Debug)]
pub struct Ledger {
    /// The counters of each watched cgroup; kills that an end has been explained with are included.
    known: HashMap<String, Counts>,
}

impl Ledger {
    /// The number of kills that were counted before or have been explained; none for a cgroup that is not watched.
    pub fn kills(&self, cgroup: &str) -> Option<u64> {
        self.known.get(cgroup).map(|known| known.kills)
    }

    /// Sets the counters at the start of the watch. A cgroup that was removed and made again counts from 0.
    pub fn begin(&mut self, cgroup: &str, counts: Counts) {
        match self.known.get(cgroup) {
            Some(known) if known.kills <= counts.kills => {}
            _ => drop(self.known.insert(cgroup.to_owned(), counts)),
        }
    }

    /// Explains the end by SIGKILL of a proc in this cgroup. None: the kernel did not kill it for lack of memory. Otherwise the index of
    /// the limit that was hit, innermost first; without an index, the host's memory had run out.
    pub fn explain(&mut self, cgroup: &str, now: Counts) -> Option<Option<usize>> {
        let before = self.known.get_mut(cgroup)?;
        if now.kills <= before.kills {
            return None;
        }
        let hit = now.limits.iter().zip(&before.limits).position(|(now, before)| now.was_hit_since(*before));
        before.kills += 1;
        // Victims of the same limit end one after another: the change of the limits is kept until all of them are explained.
        if before.kills == now.kills {
            before.limits = now.limits;
        }
        Some(hit)
    }
}

/// The memory cgroups of this host's procs. The agent owns it.
pub struct Cgroups {
    mount: Option<Mount>,
    ledger: Mutex<Ledger>,
}

impl Cgroups {
    /// The memory cgroups of this machine.
    pub fn here() -> Self {
        let mount = std::fs::read_to_string("/proc/self/mountinfo").ok().and_then(|t| Mount::find(&t));
        Cgroups { mount, ledger: Mutex::default() }
    }

    /// The cgroup of a process. Kills in this cgroup are counted from now on.
    pub fn watch(&self, pid: u32) -> Option<String> {
        let mount = self.mount.as_ref()?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let cgroup = mount.cgroup_of(&text)?;
        let known = lock(&self.ledger).kills(cgroup);
        if known.is_none_or(|known| kills(mount, cgroup).is_some_and(|now| now < known)) {
            let counts = counts(mount, cgroup)?;
            lock(&self.ledger).begin(cgroup, counts);
        }
        Some(cgroup.to_owned())
    }

    /// Replaces a SIGKILL by `Oom`, if the kernel sent it because memory had run out.
    pub fn explained(&self, reason: ExitReason, cgroups: &[String]) -> ExitReason {
        let out_of = |c: &String| self.explain(c).map(|cgroup| ExitReason::Oom { signal: libc::SIGKILL, cgroup });
        match reason {
            ExitReason::Signal { signal: libc::SIGKILL, .. } => cgroups.iter().find_map(out_of).unwrap_or(reason),
            _ => reason,
        }
    }

    /// The name of the cgroup that was out of memory, if that is why a proc in `cgroup` was killed.
    pub fn explain(&self, cgroup: &str) -> Option<String> {
        let mount = self.mount.as_ref()?;
        let now = counts(mount, cgroup)?;
        let hit = lock(&self.ledger).explain(cgroup, now)?;
        let name = hit.and_then(|i| mount.folders(cgroup).into_iter().nth(i));
        Some(name.map_or_else(|| "/".to_owned(), |(name, _)| name))
    }
}

fn read(folder: &Path, file: &str, key: &str) -> Option<u64> {
    number(&std::fs::read_to_string(folder.join(file)).ok()?, key)
}

/// The number of kills in this cgroup.
fn kills(mount: &Mount, cgroup: &str) -> Option<u64> {
    let file = match mount.version {
        Version::One => "memory.oom_control",
        Version::Two => "memory.events.local",
    };
    read(&mount.folders(cgroup).first()?.1, file, "oom_kill")
}

/// The kernel's counters of this cgroup.
fn counts(mount: &Mount, cgroup: &str) -> Option<Counts> {
    let limit: &dyn Fn(&Path) -> Limit = match mount.version {
        // The file `memory.failcnt` is not used: current kernels leave it at 0.
        Version::One => &|folder| {
            let most = read(folder, "memory.max_usage_in_bytes", "");
            Limit::Reached(most.is_some() && most >= read(folder, "memory.limit_in_bytes", ""))
        },
        Version::Two => &|folder| Limit::Hits(read(folder, "memory.events.local", "oom").unwrap_or(0)),
    };
    let limits = mount.folders(cgroup).iter().map(|(_, f)| limit(f)).collect();
    Some(Counts { kills: kills(mount, cgroup)?, limits })
}
