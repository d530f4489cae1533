//! The introduction of new hosts to the other hosts of a client's job, and of these to the new ones.
//!
//! A host that has joined alone is introduced at once. Of hosts that join in a tree, one message introduces all that have joined within
//! `INTRODUCTION_DELAY`.
//!
//! What it needs: this process, to send to hosts that have joined, and the messages of the job along its tree.
//!
//! What always holds: a host that joins knows all earlier hosts that can be dialled, and these know it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::lock::lock;
use wire::control::HostEntry;
use wire::join_tree::TreeMessage;
use wire::{Control, ProcUid};

use super::host::Host;
use super::job::Job;
use crate::local::Local;
use crate::tasks;

/// The delay between the first join and the message that introduces new hosts to all hosts: one message covers all joins of that time.
const INTRODUCTION_DELAY: Duration = Duration::from_millis(250);

/// Introduces the hosts of a client to each other.
pub(super) struct Introductions {
    pub local: Arc<Local>,
}

impl Introductions {
    /// Notifies a host that has joined of all other hosts, and all other hosts of this one.
    pub fn introduce(&self, job: &Job, host: &Host) {
        let others: Vec<_> = job.hosts().into_iter().filter(|h| h.id != host.id && h.is_joined()).collect();
        self.local.route(host.id, host.id, job.own_id);
        self.introduce_to(host, entries(&others), job.known_hosts().1);
        let Some(entry) = host.entry() else { return };
        for other in others {
            self.local.send(other.id, Control::Hosts { hosts: vec![entry.clone()] });
        }
    }

    fn introduce_to(&self, host: &Host, known: Vec<HostEntry>, lost: Vec<(ProcUid, String)>) {
        self.local.send(host.id, Control::Hosts { hosts: known });
        if !lost.is_empty() {
            self.local.send(host.id, Control::HostsLost { hosts: lost });
        }
    }

    /// Schedules `introduce_new`.
    pub fn introduce_new_later(self: &Arc<Self>, job: &Arc<Job>) {
        if !job.introducing.swap(true, Ordering::AcqRel) {
            tasks::later_for(&self.local.poller, INTRODUCTION_DELAY, self, job, |me, job| {
                job.introducing.store(false, Ordering::Release);
                me.introduce_new(job);
            });
        }
    }

    /// Introduces all hosts that have joined in a tree and have not been introduced.
    pub fn introduce_new(&self, job: &Job) {
        let joined = job.hosts().into_iter().filter(|h| h.is_joined());
        let (old, new): (Vec<Arc<Host>>, Vec<Arc<Host>>) = joined.partition(|h| std::mem::replace(&mut lock(&h.state).introduced, true));
        if new.is_empty() {
            return;
        }
        let lost = job.known_hosts().1;
        job.spread(&TreeMessage::Hosts { hosts: entries(&new) });
        if old.is_empty() {
            return job.spread(&TreeMessage::HostsLost { hosts: lost });
        }
        let known = entries(&old);
        new.iter().for_each(|host| self.introduce_to(host, known.clone(), lost.clone()));
    }

    /// Sends all that is known of the hosts to the hosts that a lost host has joined, as it may not have passed on the last messages. They
    /// pass it on to their own relayed hosts.
    pub fn repeat_soon(&self, job: &Arc<Job>, to: Vec<ProcUid>) {
        if to.is_empty() {
            return;
        }
        let job = job.clone();
        self.local.poller.spawn(Box::new(move || {
            let (known, lost) = job.known_hosts();
            let (known, lost) = (TreeMessage::Hosts { hosts: known }, TreeMessage::HostsLost { hosts: lost });
            for host in to {
                job.send_to_next(host, &known);
                job.send_to_next(host, &lost);
            }
        }));
    }
}

fn entries(hosts: &[Arc<Host>]) -> Vec<HostEntry> {
    hosts.iter().filter_map(|h| h.entry()).collect()
}
