//! The repair of a relay's trees after the end of processes and hosts.
//!
//! A target whose proc has ended gets the outcome "gone". The part of a lost host is requested from the next live host of its span. A group
//! whose source or root has ended is removed.

use std::collections::HashSet;
use std::time::Duration;

use wire::{GroupId, ProcUid};

use super::fan_out::head;
use super::group::pass_on;
use super::record::{Child, Own};
use super::relay::{Effect, Relay};

impl Relay {
    /// Takes the end of procs, on this host or on others.
    pub fn on_procs_ended(&mut self, now: Duration, procs: &[ProcUid]) -> Vec<Effect> {
        let mut out = Vec::new();
        self.ended.extend(procs);
        let procs: HashSet<ProcUid> = procs.iter().copied().collect();
        let orphans: Vec<GroupId> = self.groups.keys().filter(|id| procs.contains(&id.source)).copied().collect();
        orphans.into_iter().for_each(|id| self.drop_group(id));
        self.forgotten.retain(|id| !procs.contains(&id.source));
        let mut hit = Vec::new();
        for (id, g) in &mut self.groups {
            let Some(own) = g.own else { continue };
            let gone: Vec<usize> = g
                .slice
                .indices(own)
                .enumerate()
                .filter(|(_, i)| g.slice.target(*i).is_some_and(|(p, _)| procs.contains(&p)))
                .map(|(at, _)| at)
                .collect();
            for (number, record) in g.casts.iter_mut().filter(|_| !gone.is_empty()) {
                for at in &gone {
                    if let Some(own) = record.own.get_mut(*at).filter(|own| matches!(own, Own::Pending)) {
                        *own = Own::Gone;
                        record.missing -= 1;
                        hit.push((*id, *number));
                    }
                }
            }
        }
        hit.into_iter().for_each(|(id, number)| self.settle(now, id, number, &mut out));
        out
    }

    /// Takes the end of hosts and of all their procs. Hosts that replace them are asked for the answers.
    pub fn on_hosts_ended(&mut self, now: Duration, hosts: &[ProcUid]) -> Vec<Effect> {
        let mut out = Vec::new();
        self.dead.extend(hosts);
        let orphans: Vec<GroupId> = self.groups.iter().filter(|(_, g)| self.dead.contains(&g.slice.root)).map(|(id, _)| *id).collect();
        orphans.into_iter().for_each(|id| self.drop_group(id));
        self.taken.retain(|parent, _| parent.is_none_or(|p| !hosts.contains(&p)));
        let mut hit = Vec::new();
        for (id, g) in &mut self.groups {
            g.sent_members.retain(|h, _| !hosts.contains(h));
            for (number, record) in &mut g.casts {
                let mut tasks = std::mem::take(&mut record.tasks);
                tasks.retain(|t| t.parent.is_none_or(|p| !self.dead.contains(&p)));
                for task in &mut tasks {
                    let lost = |c: &Child| c.result.is_none() && self.dead.contains(&c.head);
                    let (over, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut task.children).into_iter().partition(lost);
                    task.children = rest;
                    for child in over {
                        hit.push((*id, *number));
                        if let Some((head, span)) = head(child.span, |p| g.slice.host(p), |h| self.dead.contains(&h)) {
                            task.children.push(Child { head, ask: record.next_ask, span, result: None });
                            out.push(pass_on(record, g.finished, &g.slice, &mut g.sent_members, head, span));
                            record.next_ask += 1;
                        }
                    }
                }
                record.tasks = tasks;
            }
        }
        hit.dedup();
        hit.into_iter().for_each(|(id, number)| self.settle(now, id, number, &mut out));
        out
    }
}
