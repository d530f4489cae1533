//! The processor time of a process, and the time in which it waited for a processor, or in which its cgroup held it back.
//!
//! The kernel has these as counters in `/proc` and in the files of the cgroup. Two looks at them give the part of the time. The agent reads
//! them for the processes of its host: a process that gets no processor does not answer itself.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use crate::agent::cgroup::number;
use crate::agent::kernel_state::seconds;

/// The tree of cgroups of version 2, and that of the controller `cpu` of version 1 below it.
const GROUPS: &str = "/sys/fs/cgroup";
const CPU: &str = "cpu";
const STATISTICS: &str = "cpu.stat";

/// The counters of a process at a moment.
#[derive(Serialize)]
pub(crate) struct ProcessorTimes {
    /// The age of the agent at that moment, in seconds.
    pub at: f64,
    /// Nanoseconds of all threads on a processor.
    pub used: u64,
    /// Nanoseconds of all threads in the queue for a processor.
    pub waited: u64,
    /// The file with the counters of the cgroup that may limit its processor time.
    pub group: Option<String>,
    /// Nanoseconds for which the cgroup was held back, over all its processors.
    pub held_back: u64,
}

/// The counters of a process; none if it has ended, or if the kernel does not count. `born` is the birth of the agent.
pub(crate) fn processor_times(pid: u32, born: Instant) -> Option<ProcessorTimes> {
    let (mut used, mut waited) = (0, 0);
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end meanwhile.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok());
        used += fields.next().unwrap_or(0);
        waited += fields.next().unwrap_or(0);
    }
    let at = seconds(born);
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let (group, held_back) = places(&groups).find_map(|file| Some((file.clone(), held_back(&std::fs::read_to_string(file).ok()?)))).unzip();
    let group = group.map(|file| file.to_string_lossy().into_owned());
    Some(ProcessorTimes { at, used, waited, group, held_back: held_back.unwrap_or(0) })
}

/// The files that may have the counters of the cgroup, from the text of `/proc/PID/cgroup`. The root of all groups has no limit.
fn places(groups: &str) -> impl Iterator<Item = PathBuf> {
    groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?.trim_matches('/'));
        let tree = match controllers {
            "" => PathBuf::from(GROUPS),
            _ if controllers.split(',').any(|c| c == CPU) => PathBuf::from(GROUPS).join(CPU),
            _ => return None,
        };
        (!group.is_empty()).then(|| tree.join(group).join(STATISTICS))
    })
}

/// The nanoseconds in the text of the file: the two versions have other keys and units.
fn held_back(statistics: &str) -> u64 {
    number(statistics, "throttled_usec").map_or_else(|| number(statistics, "throttled_time").unwrap_or(0), |micros| micros * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_times() {
        let born = Instant::now();
        let first = processor_times(std::process::id(), born).unwrap();
        while processor_times(std::process::id(), born).unwrap().used == first.used {}
        assert!(processor_times(u32::MAX, born).is_none());
    }

    #[test]
    fn files_of_both_versions_are_found() {
        let files: Vec<PathBuf> = places("5:cpu,cpuacct:/job/7\n4:cpuset:/job/7\n3:memory:/\n0::/slice/x\n").collect();
        assert_eq!(files, [PathBuf::from("/sys/fs/cgroup/cpu/job/7/cpu.stat"), PathBuf::from("/sys/fs/cgroup/slice/x/cpu.stat")]);
        assert_eq!(places("5:cpu:/\n0::/\n").count(), 0);
    }

    #[test]
    fn both_versions_count_in_nanoseconds() {
        assert_eq!(held_back("nr_periods 3\nnr_throttled 2\nthrottled_time 1234\n"), 1234);
        assert_eq!(held_back("usage_usec 9\nthrottled_usec 7\n"), 7000);
        assert_eq!(held_back("usage_usec 9\n"), 0);
    }
}
