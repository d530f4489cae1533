//! The ends of processes: the order in which the components of this process are notified.
//!
//! The tombstone of a process is inserted first; then the housekeeping thread is notified, and only then the calls fail. So a thread that
//! sees a failed call finds the end of the process. Reports of one end may arrive from several sources; only the first counts. This
//! component needs those that keep something for a process: peers, offers, streams, calls, and the gateway. It also connects this process
//! to the clients of other jobs, because their loss is the end of the processes that are reached through them.

use std::sync::Arc;

use net::dial::error_text;
use wire::exit::ProcEnd;
use wire::{Control, ProcUid};

use crate::calls::Calls;
use crate::messages::replies::Replies;
use crate::peers::Peers;
use crate::peers::ended::client_end;
use crate::peers::external_process::{CLIENT_ENDED, dial};
use crate::streams::Streams;
use crate::system::{SystemEvent, SystemQueue};
use crate::transfers::offers::Offers;

/// The reason why processes of a client that is reached through hosts cannot be reached.
const NOT_REACHABLE: &str = "it is reached by way of another client, and its own procs and hosts are not";

/// Notifies the components of one process of the ends of other processes.
pub struct Ends {
    pub(crate) peers: Arc<Peers>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) offers: Arc<Offers>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) system: Arc<SystemQueue>,
}

impl Ends {
    /// Takes the end of processes that have one cause. The housekeeping thread is notified of all of them first, then the calls to each of
    /// them fail.
    pub fn procs_ended(&self, ends: Vec<(ProcUid, ProcEnd)>) {
        let ends = self.peers.expand_ends(ends);
        let mut fresh = Vec::with_capacity(ends.len());
        for (uid, end) in ends {
            let peer = self.peers.peer_unlinked(uid).0;
            // The report may overtake the last frames of the process, so its link is read first: answers that it sent before its end count.
            peer.link.drain();
            let ended = self.peers.insert_tombstone(uid, end);
            let waiting = peer.set_ended(ended.clone());
            if ended.notify_once() {
                self.offers.ended(uid);
                fresh.push((peer, ended, waiting));
            }
        }
        self.peers.forget_drained();
        if fresh.is_empty() {
            return;
        }
        let known: Vec<(ProcUid, ProcEnd)> = fresh.iter().map(|(p, ended, _)| (p.uid, ended.end.clone())).collect();
        if let Some(gateway) = self.peers.roles.gateway() {
            gateway.procs_ended(&known);
        }
        self.streams.procs_ended(&known);
        self.system.push(SystemEvent::ProcsEnded { ends: known });
        let ended = fresh.iter().map(|(peer, ended, _)| (peer.uid, ended.clone())).collect();
        fresh.iter().for_each(|(peer, ..)| peer.link.close());
        self.calls.fail_peers(&ended);
        for (peer, _, waiting) in fresh {
            waiting.into_iter().for_each(|m| self.replies.report_ended(m, &peer));
        }
    }

    /// Makes processes of another client's job reachable; `places` has the host of each process. This process becomes an external process
    /// of that client: procs of the client's own host get links to it, and the client forwards frames to and from its other hosts.
    pub fn join(&self, client: ProcUid, places: &[(ProcUid, ProcUid)]) {
        let peers = &self.peers;
        let is_joined = peers.is_other_client(client);
        if !is_joined && peers.peer_unlinked(client).0.link.is_forwarded() {
            // That client takes part in the job of this process, which reaches it through other hosts. Nothing else of that client's own
            // job is reachable.
            let end = client_end(0, NOT_REACHABLE);
            return self.procs_ended(places.iter().filter(|(proc, _)| *proc != client).map(|(proc, _)| (*proc, end.clone())).collect());
        }
        let joined = if is_joined { Ok(()) } else { self.join_client(client) };
        peers.reach_through(client, places.iter().filter(|(proc, host)| *host == client && *proc != client).map(|(proc, _)| *proc));
        for (proc, host) in places.iter().filter(|(_, host)| *host != client) {
            peers.route(*host, *host, client);
            peers.route(*proc, *host, client);
        }
        match joined {
            Err(why) => self.client_lost(client, &why),
            // The client may have ended meanwhile; then the processes that were added above end with it.
            Ok(()) if peers.end_of(client).is_some() => self.client_lost(client, CLIENT_ENDED),
            Ok(()) => {}
        }
    }

    /// Connects to a client. A client that has connected to this process already has a link to it.
    fn join_client(&self, client: ProcUid) -> Result<(), String> {
        let (uid, peer) = (self.peers.uid, self.peers.peer_unlinked(client).0);
        self.peers.reach_through(client, [client]);
        if !peer.link.is_attached() {
            let link = dial(client, uid).and_then(|fd| peer.link.attach(fd));
            link.map_err(|e| format!("no client of this user answers for it on this machine: {}", error_text(&e)))?;
        }
        peer.send_control(Control::Hello { version: wire::VERSION, uid, pid: std::process::id() });
        Ok(())
    }

    /// Takes the end of the client whose external process this one is: all processes that are reached through that client end too.
    pub(crate) fn client_lost(&self, client: ProcUid, why: &str) {
        self.procs_ended(vec![(client, client_end(0, why))]);
    }
}
