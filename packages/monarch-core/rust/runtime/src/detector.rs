//! Temporary.
use std::collections::HashMap;
use std::time::{Duration, Instant};

use wire::ProcUid;

#[derive(Clone, Copy)]
pub struct Settings { pub loss: Duration, pub reconnect: Duration }
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkEnd { Exited, Reset, Cut }
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action { Ping(ProcUid), Probe { via: ProcUid, about: ProcUid }, Suspect(ProcUid), Recovered(ProcUid), Lost { host: ProcUid, why: String }, LinkLost { host: ProcUid, why: String } }
pub struct Detector { settings: Settings, hosts: HashMap<ProcUid, Instant> }
impl Detector {
    pub fn new(settings: Settings) -> Self { Detector { settings, hosts: HashMap::new() } }
    pub fn watch(&mut self, host: ProcUid, now: Instant) { self.hosts.insert(host, now); }
    pub fn forget(&mut self, host: ProcUid) { self.hosts.remove(&host); }
    pub fn heard(&mut self, host: ProcUid, now: Instant) { if let Some(t) = self.hosts.get_mut(&host) { *t = now; } }
    pub fn link_down(&mut self, _host: ProcUid, _end: LinkEnd, _now: Instant) {}
    pub fn probed(&mut self, _about: ProcUid, _via: ProcUid, _ago: Option<Duration>, _now: Instant) {}
    pub fn asked(&mut self, about: ProcUid, now: Instant) -> Option<Duration> { self.hosts.get(&about).map(|t| now - *t) }
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        let mut out = vec![];
        let lost: Vec<_> = self.hosts.iter().filter(|(_, t)| now - **t > self.settings.loss).map(|(h, t)| (*h, now - *t)).collect();
        for (host, silent) in lost { self.hosts.remove(&host); out.push(Action::Lost { host, why: format!("silent for {:.1} s", silent.as_secs_f64()) }); }
        out.extend(self.hosts.keys().map(|h| Action::Ping(*h)));
        out
    }
    pub fn next(&self, _now: Instant) -> Option<Duration> { (!self.hosts.is_empty()).then_some(self.settings.loss / 10) }
}
