//! Which procs the kernel killed because memory had run out.
//!
//! A wait status does not tell: the OOM killer sends an ordinary SIGKILL. But before it sends it, the kernel counts the kill in the
//! memory cgroup of its victim, whichever limit was hit. So the counter is read when a proc comes up and again when one dies by SIGKILL; a
//! kill that no death has been explained with explains this one. Two victims in one cgroup at the same moment, one of them ours and
//! killed by a person, can be mistaken for each other; nothing the kernel keeps could tell them apart.
//!
//! A process may be moved, by its own command or by another process, and nothing is notified of that. With the older interface a process
//! that has been killed is shown in the root until it is reaped, so its cgroup has to be known before. Therefore the agent looks when a
//! proc is started, when it says hello, and each time that it looks after its procs (`watch`). A kill within that period after a move is
//! `signal`, as a kill by a person is. On a host without the memory controller nothing is claimed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use net::lock::lock;
use wire::exit::ExitReason;

/// The two interfaces of the kernel; both may be mounted, and then the memory controller is in the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    One,
    Two,
}

/// Where the tree of memory cgroups, or a part of it, is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    pub version: Version,
    /// The cgroup that the mount point shows.
    pub root: String,
    pub at: PathBuf,
}

impl Mount {
    /// From `/proc/self/mountinfo`.
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

    /// The memory cgroup that `/proc/<pid>/cgroup` names.
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

    /// The folders of a cgroup and of those around it as far as they are shown, innermost first, each with its name.
    pub fn folders(&self, cgroup: &str) -> Vec<(String, PathBuf)> {
        let Ok(inside) = Path::new(cgroup).strip_prefix(&self.root) else { return Vec::new() };
        // Joined piece by piece: an empty one would leave a slash at the end.
        let under = |base: &Path, p: &Path| base.components().chain(p.components()).collect::<PathBuf>();
        let name = |p: &Path| under(Path::new(&self.root), p).to_string_lossy().into_owned();
        inside.ancestors().map(|p| (name(p), under(&self.at, p))).collect()
    }
}

/// The number behind a key in lines of `key number`; with an empty key the whole text is the number.
pub fn number(text: &str, key: &str) -> Option<u64> {
    if key.is_empty() {
        return text.trim().parse().ok();
    }
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// What is known of a cgroup's own limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// How often memory could not be had because of it.
    Hits(u64),
    /// The older interface only tells whether it was ever reached.
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

/// What the kernel shows of one cgroup.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub kills: u64,
    /// Its limit, and the limits of those around it, innermost first.
    pub limits: Vec<Limit>,
}

/// Decides which deaths the counters explain.
#[derive(Default, Debug)]
pub struct Ledger {
    known: HashMap<String, Counts>,
}

impl Ledger {
    /// The kills that are known or explained; none of a cgroup that is not known.
    pub fn kills(&self, cgroup: &str) -> Option<u64> {
        self.known.get(cgroup).map(|known| known.kills)
    }

    /// What is counted before anything happened here that concerns us. A cgroup that was removed and made again counts from 0.
    pub fn begin(&mut self, cgroup: &str, counts: Counts) {
        match self.known.get(cgroup) {
            Some(known) if known.kills <= counts.kills => {}
            _ => drop(self.known.insert(cgroup.to_owned(), counts)),
        }
    }

    /// A proc in this cgroup died by SIGKILL. Whether the kernel had run out of memory, and then, innermost first, which limit was hit;
    /// none of them: the memory of the host.
    pub fn explain(&mut self, cgroup: &str, now: Counts) -> Option<Option<usize>> {
        let before = self.known.get_mut(cgroup)?;
        if now.kills <= before.kills {
            return None;
        }
        let hit = now.limits.iter().zip(&before.limits).position(|(now, before)| now.was_hit_since(*before));
        before.kills += 1;
        // Victims of the same limit die one after another: the hits count until all are explained.
        if before.kills == now.kills {
            before.limits = now.limits;
        }
        Some(hit)
    }
}

/// The memory cgroups of this host's procs.
pub struct Cgroups {
    mount: Option<Mount>,
    ledger: Mutex<Ledger>,
}

impl Cgroups {
    /// Of this machine.
    pub fn here() -> Self {
        let mount = std::fs::read_to_string("/proc/self/mountinfo").ok().and_then(|t| Mount::find(&t));
        Cgroups { mount, ledger: Mutex::default() }
    }

    /// The cgroup that a process is in; from now on kills there are noticed.
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

    /// A SIGKILL that the kernel sent because memory had run out is distinguished from others.
    pub fn explained(&self, reason: ExitReason, cgroups: &[String]) -> ExitReason {
        let out_of = |c: &String| self.explain(c).map(|cgroup| ExitReason::Oom { signal: libc::SIGKILL, cgroup });
        match reason {
            ExitReason::Signal { signal: libc::SIGKILL, .. } => cgroups.iter().find_map(out_of).unwrap_or(reason),
            _ => reason,
        }
    }

    /// The cgroup that was out of memory, if that is why a proc in `cgroup` got SIGKILL.
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

/// How often the kernel has killed in this cgroup.
fn kills(mount: &Mount, cgroup: &str) -> Option<u64> {
    let file = match mount.version {
        Version::One => "memory.oom_control",
        Version::Two => "memory.events.local",
    };
    read(&mount.folders(cgroup).first()?.1, file, "oom_kill")
}

fn counts(mount: &Mount, cgroup: &str) -> Option<Counts> {
    let limit: &dyn Fn(&Path) -> Limit = match mount.version {
        // Not its `memory.failcnt`, which current kernels leave at 0.
        Version::One => &|folder| {
            let most = read(folder, "memory.max_usage_in_bytes", "");
            Limit::Reached(most.is_some() && most >= read(folder, "memory.limit_in_bytes", ""))
        },
        Version::Two => &|folder| Limit::Hits(read(folder, "memory.events.local", "oom").unwrap_or(0)),
    };
    let limits = mount.folders(cgroup).iter().map(|(_, f)| limit(f)).collect();
    Some(Counts { kills: kills(mount, cgroup)?, limits })
}
