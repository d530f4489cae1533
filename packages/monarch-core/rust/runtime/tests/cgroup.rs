//! The decision whether the kernel has killed a process for lack of memory, from the counters of cgroups.

use std::path::Path;

use runtime::agent::cgroup::{Counts, Ledger, Limit, Mount, Version, number};

const ONE: &str = "24 1 0:22 / /proc rw,nosuid - proc proc rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/ab12 /sys/fs/cgroup/memory ro,nosuid shared:11 master:3 - cgroup cgroup rw,memory
35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";
const TWO: &str = "31 23 0:27 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,memory_recursiveprot\n";

fn counts(kills: u64, hits: &[u64]) -> Counts {
    Counts { kills, limits: hits.iter().map(|n| Limit::Hits(*n)).collect() }
}

#[test]
fn mounts_are_found() {
    let one = Mount::find(ONE).unwrap();
    assert_eq!((one.version, one.root.as_str(), one.at.as_path()), (Version::One, "/docker/ab12", Path::new("/sys/fs/cgroup/memory")));
    let two = Mount::find(TWO).unwrap();
    assert_eq!((two.version, two.root.as_str()), (Version::Two, "/"));
    assert_eq!(Mount::find("24 1 0:22 / /proc rw - proc proc rw\nnonsense\n"), None);
}

#[test]
fn cgroup_of_a_process() {
    let text = "9:name=systemd:/s\n4:cpu,memory:/docker/ab12/job:1/x\n0::/unified\n";
    assert_eq!(Mount::find(ONE).unwrap().cgroup_of(text), Some("/docker/ab12/job:1/x"));
    assert_eq!(Mount::find(TWO).unwrap().cgroup_of(text), Some("/unified"));
    assert_eq!(Mount::find(TWO).unwrap().cgroup_of("4:memory:/x\n"), None);
}

#[test]
fn folders_include_those_of_outer_cgroups() {
    let shown: Vec<(String, String)> =
        Mount::find(ONE).unwrap().folders("/docker/ab12/job").into_iter().map(|(n, p)| (n, p.display().to_string())).collect();
    let expected = [("/docker/ab12/job", "/sys/fs/cgroup/memory/job"), ("/docker/ab12", "/sys/fs/cgroup/memory")];
    assert_eq!(shown.iter().map(|(n, p)| (n.as_str(), p.as_str())).collect::<Vec<_>>(), expected);
    let names: Vec<String> = Mount::find(TWO).unwrap().folders("/a/b").into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["/a/b", "/a", "/"]);
    assert!(Mount::find(ONE).unwrap().folders("/elsewhere").is_empty());
}

#[test]
fn numbers_of_a_file() {
    let text = "oom_kill_disable 0\nunder_oom 1\noom_kill 3\n";
    assert_eq!((number(text, "oom_kill"), number(text, "oom"), number("7\n", "")), (Some(3), None, Some(7)));
    assert_eq!(number("oom 2\noom_kill 1\n", "oom"), Some(2));
}

#[test]
fn each_kill_explains_one_death() {
    let mut ledger = Ledger::default();
    ledger.begin("/job", counts(5, &[2, 0, 9]));
    assert_eq!((ledger.kills("/job"), ledger.kills("/other")), (Some(5), None));
    // A second `begin` for the same cgroup keeps the counters of the first.
    ledger.begin("/job", counts(7, &[3, 1, 9]));
    assert_eq!(ledger.explain("/job", counts(5, &[2, 0, 9])), None);
    assert_eq!(ledger.explain("/job", counts(7, &[2, 1, 9])), Some(Some(1)));
    assert_eq!(ledger.explain("/job", counts(7, &[2, 1, 9])), Some(Some(1)));
    assert_eq!(ledger.explain("/job", counts(7, &[2, 1, 9])), None);
    assert_eq!(ledger.explain("/other", counts(1, &[1])), None);
}

#[test]
fn cgroup_that_is_made_again_counts_from_zero() {
    let mut ledger = Ledger::default();
    ledger.begin("/job", counts(5, &[2]));
    ledger.begin("/job", counts(0, &[0]));
    assert_eq!(ledger.kills("/job"), Some(0));
    assert_eq!(ledger.explain("/job", counts(1, &[1])), Some(Some(0)));
}

#[test]
fn kill_without_a_reached_limit_is_the_hosts() {
    let mut ledger = Ledger::default();
    ledger.begin("/job", counts(0, &[4, 4]));
    assert_eq!(ledger.explain("/job", counts(1, &[4, 4])), Some(None));
    // After a kill is explained, its limit hits do not explain another one.
    assert_eq!(ledger.explain("/job", counts(2, &[5, 4])), Some(Some(0)));
    assert_eq!(ledger.explain("/job", counts(3, &[5, 4])), Some(None));
}

#[test]
fn older_interface_names_the_innermost_reached_limit() {
    let counts = |kills, reached: &[bool]| Counts { kills, limits: reached.iter().map(|r| Limit::Reached(*r)).collect() };
    let mut ledger = Ledger::default();
    ledger.begin("/a/b", counts(0, &[false, true]));
    assert_eq!(ledger.explain("/a/b", counts(1, &[false, true])), Some(Some(1)));
    assert_eq!(ledger.explain("/a/b", counts(2, &[true, true])), Some(Some(0)));
    assert_eq!(ledger.explain("/a/b", counts(2, &[true, true])), None);
}
