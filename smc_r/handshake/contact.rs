// SPDX-License-Identifier: GPL-2.0

//! What a connection needs before its CLC message can name it: link group, queue pair, buffers.

use kapi::errno::ENOBUFS;
use kernel::{prelude::*, sync::Arc};
use smc_proto::{
    clc::AcceptV2,
    group::{Element, LinkEnd, Role},
    handshake::{
        accept_subsequent,
        Contact,
        Local,
        Peer,
        Server, //
    },
    wire::{Diagnosis, Gid, RmbeSize}, //
};

use super::{
    Draft,
    Handshake,
    Machine,
    State, //
};
use crate::{
    clock::now,
    conn::Connection,
    device::Path,
    group::{
        Group,
        Known,
        OwnElement,
        PooledRing,
        ServerChoice,
        Taken,
        Terms, //
    },
    link::Link,
    path,
};

impl Handshake {
    /// Finds or makes the link group, and everything else that the CLC message names, unless
    /// somebody else has to do something first.
    pub(super) fn contact(self: &Arc<Self>, state: &mut State) {
        // Its listener is closed, which is about to end this, too: it gets no link group any more.
        if self
            .listener
            .as_ref()
            .is_some_and(|listener| listener.owner().is_none())
        {
            return;
        }
        let answer = match &state.machine {
            Machine::Client(client) => match client.offer().copied() {
                Some(offer) => self.choose_client(&mut state.draft, &offer),
                None => Some(Contact::Wait),
            },
            Machine::Server(server) => {
                if state.draft.group.is_none() {
                    self.choose_server(&mut state.draft, server)
                } else {
                    self.equip(&mut state.draft)
                }
            }
            Machine::Tcp | Machine::Over => None,
        };
        // Without an answer we are woken when there may be one.
        let Some(answer) = answer else {
            return;
        };
        state.choosing = false;
        let late = match &mut state.machine {
            Machine::Client(client) => client.handle_contact(answer, now()).is_err(),
            Machine::Server(server) => server.handle_contact(answer, now()).is_err(),
            Machine::Tcp | Machine::Over => true,
        };
        if late || !matches!(answer, Contact::First(_) | Contact::Subsequent(_)) {
            self.give_up(&mut state.draft, true);
        }
    }

    #[inline(never)]
    fn choose_client(self: &Arc<Self>, draft: &mut Draft, offer: &Peer) -> Option<Contact> {
        if draft.group.is_some() {
            return self.equip(draft);
        }
        let groups = &self.sk.ns.shared.groups;
        let path = match &offer.v2 {
            None => draft.offered.v1.clone(),
            Some(_) => draft.offered.v2.clone(),
        };
        let Some(path) = path else {
            return Some(Contact::Refuse(Diagnosis::NO_SMC_R_DEVICE));
        };
        if let Some(accept) = &offer.v2 {
            match self.agree(accept, &path, offer.link.gid) {
                Ok(v2) => draft.v2 = Some(v2),
                Err(reason) => return Some(Contact::Refuse(reason)),
            }
        }
        if offer.first_contact {
            let terms = draft.v2.as_ref().map(|v2| Terms::new(v2, &self.sk.ns));
            let peer = (offer.id, offer.link.gid);
            let from = self.peer_ip();
            let Ok((group, token)) = groups.create_client(&self.sk.ns, peer, &path, terms, from)
            else {
                return Some(Contact::Refuse(Diagnosis::MEMORY));
            };
            draft.token = Some(token);
            draft.group = Some((group.clone(), true));
            match group.make_first_link() {
                Ok(link) => draft.link = Some(link),
                Err(reason) => return Some(Contact::Refuse(reason)),
            }
            if let Err(reason) = group.connect(&offer.link) {
                return Some(Contact::Refuse(reason));
            }
            let answer = self.equip(draft);
            if let Some(Contact::First(local)) = &answer {
                group.start(self.clone(), local.link, offer);
            }
            return answer;
        }
        let is_v2 = offer.v2.is_some();
        let found = groups.find_client(&self.sk.ns, offer.id, &offer.link, path.vlan, is_v2);
        let Some(found) = found else {
            return Some(Contact::OutOfSync);
        };
        let Some((group, place)) = found else {
            return Some(Contact::Refuse(Diagnosis::UNKNOWN_LINK));
        };
        let Some(token) = group.add_connection() else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        draft.link = group.link(place);
        draft.token = Some(token);
        draft.group = Some((group, false));
        self.equip(draft)
    }

    /// Client: what we say to the server's choice of version 2.
    #[inline(never)]
    fn agree(&self, accept: &AcceptV2, path: &Path, peer: Gid) -> Result<AcceptV2, Diagnosis> {
        let Some(first) = &accept.first else {
            return Ok(accept_subsequent(accept.eid));
        };
        // It may have been switched off in the meantime.
        let own = self.sk.ns.own_v2().ok_or(Diagnosis::NO_USER_EID)?;
        let direct = path::is_direct(path, peer)?;
        if first.direct != direct {
            return Err(Diagnosis::INDIRECT);
        }
        Ok(own.confirm(accept, path.gid, direct))
    }

    #[inline(never)]
    fn choose_server(self: &Arc<Self>, draft: &mut Draft, server: &Server) -> Option<Contact> {
        if let Some(reason) = self.refusal {
            return Some(Contact::Refuse(reason));
        }
        let Some(proposal) = server.proposal() else {
            return Some(Contact::Refuse(Diagnosis::INTERNAL));
        };
        let found = match path::matching(&self.sk, &self.tcp, proposal) {
            Ok(found) => found,
            Err(reason) => return Some(Contact::Refuse(reason)),
        };
        let no_link = |group: &Arc<Group>| group.no_link(&found.path);
        if draft.waits.as_ref().is_some_and(no_link) {
            return Some(Contact::Refuse(Diagnosis::MEMORY));
        }
        self.stop_waiting(draft);
        let groups = &self.sk.ns.shared.groups;
        draft.v2 = found.v2;
        match groups.choose_server(&self.sk.ns, proposal.peer_id, &found, self.peer_ip()) {
            Ok(ServerChoice::Subsequent(group, seat, token)) => {
                draft.v2 = found.v2.map(|v2| accept_subsequent(v2.eid));
                draft.link = Some((*seat).clone());
                draft.seat = Some(seat);
                draft.token = Some(token);
                draft.group = Some((group, false));
            }
            Ok(ServerChoice::First(group, token, first_contact)) => {
                draft.first_contact = Some(first_contact);
                draft.token = Some(token);
                draft.group = Some((group.clone(), true));
                match group.make_first_link() {
                    Ok(link) => draft.link = Some(link),
                    Err(reason) => return Some(Contact::Refuse(reason)),
                }
            }
            Ok(ServerChoice::Wait(group)) => {
                if self.wait(draft, &group).is_err() {
                    return Some(Contact::Refuse(Diagnosis::MEMORY));
                }
                // It may have been decided in between.
                if group.is_usable() || group.is_over() {
                    self.group_news();
                }
                return None;
            }
            Err(_) => return Some(Contact::Refuse(Diagnosis::MEMORY)),
        }
        self.equip(draft)
    }

    /// Gets element and send ring, at the expense of the program: of the one that listens where none has accepted
    /// the connection yet. `None`: wait for the peer's word on a new RMB.
    fn equip(self: &Arc<Self>, draft: &mut Draft) -> Option<Contact> {
        let listener = self.listener.as_ref().and_then(|listener| listener.owner());
        match listener {
            Some(owner) => owner.charged(|| self.equip_now(draft)),
            None => self.sk.charged(|| self.equip_now(draft)),
        }
    }

    #[inline(never)]
    fn equip_now(self: &Arc<Self>, draft: &mut Draft) -> Option<Contact> {
        let (Some((group, first)), Some(token)) = (draft.group.clone(), draft.token) else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        let Some(link) = working_link(draft, &group, first) else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        match &mut draft.ring {
            // It may be another link by now.
            Some(ring) => {
                if ring.map_for(&link).is_err() {
                    return Some(Contact::Refuse(Diagnosis::MEMORY));
                }
            }
            None => match self.ring(&group, &link) {
                Ok(ring) => draft.ring = Some(ring),
                Err(_) => return Some(Contact::Refuse(Diagnosis::MEMORY)),
            },
        }
        if draft.element.is_none() {
            match self.element(&group, first, draft) {
                Ok(Some(element)) => draft.element = Some(element),
                Ok(None) => return None,
                Err(reason) => return Some(Contact::Refuse(reason)),
            }
        }
        if draft.room.is_none() {
            match Connection::room() {
                Ok(room) => draft.room = Some(room),
                Err(_) => return Some(Contact::Refuse(Diagnosis::MEMORY)),
            }
        }
        let (Some(element), Some(end)) = (&draft.element, link.local()) else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        // The server's queue pair cannot register before the Confirm has come.
        let rmb = element.group_rmb();
        if first && group.role == Role::Client && rmb.register(link.place).is_err() {
            return Some(Contact::Refuse(Diagnosis::REGISTER_RMB));
        }
        let Some(rtoken) = rmb.token(link.place) else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        let local = Local {
            link: end.into(),
            element: Element {
                token: rtoken,
                index: element.index(),
                size: element.size(),
                alert: token.into(),
            },
            v2: draft.v2,
        };
        Some(if first {
            Contact::First(local)
        } else {
            Contact::Subsequent(local)
        })
    }

    fn ring(&self, group: &Arc<Group>, link: &Link) -> Result<PooledRing> {
        let wanted = if self.sk.sndbuf_locked() {
            self.sk.sndbuf() as u32 / 2
        } else {
            self.sk.ns.wmem()
        };
        let mut size = RmbeSize::for_buffer(wanted);
        loop {
            match (group.take_ring(link, size), size.smaller()) {
                (Err(_), Some(smaller)) => {
                    self.sk.ns.stats.tx().downgraded();
                    size = smaller;
                }
                (result, _) => return result,
            }
        }
    }

    fn element(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: bool,
        draft: &mut Draft,
    ) -> Result<Option<OwnElement>, Diagnosis> {
        let wanted = if self.sk.rcvbuf_locked() {
            self.sk.rcvbuf() as u32 / 2
        } else {
            self.sk.ns.rmem()
        };
        let size = RmbeSize::for_buffer(wanted);
        if first {
            return group
                .first_element(size)
                .map(Some)
                .map_err(|_| Diagnosis::MEMORY);
        }
        if draft
            .pending
            .take()
            .is_some_and(|rmb| rmb.known() == Known::Refused)
        {
            return Err(Diagnosis::REGISTER_RMB);
        }
        // Wait first, look then: the news may come in between.
        self.wait(draft, group).map_err(|_| Diagnosis::MEMORY)?;
        let taken = group.take_element(size);
        if let Ok(Taken::Pending(rmb)) = taken {
            draft.pending = Some(rmb);
            return Ok(None);
        }
        self.stop_waiting(draft);
        match taken {
            Ok(Taken::Element(element)) => Ok(Some(element)),
            Err(error) if [ENOMEM, ENOBUFS].contains(&error) => Err(Diagnosis::MEMORY),
            _ => Err(Diagnosis::REGISTER_RMB),
        }
    }

    /// Has the group wake us.
    fn wait(self: &Arc<Self>, draft: &mut Draft, group: &Arc<Group>) -> Result {
        group.wait(self.clone())?;
        draft.waits = Some(group.clone());
        Ok(())
    }

    pub(super) fn stop_waiting(self: &Arc<Self>, draft: &mut Draft) {
        if let Some(group) = draft.waits.take() {
            group.stop_waiting(self);
        }
    }

    /// Server, first contact: the queue pair goes up, the peer may write to our RMB.
    #[inline(never)]
    pub(super) fn connect_link(&self, state: &mut State, peer: &LinkEnd) {
        let result = match &state.draft {
            Draft {
                group: Some((group, _)),
                element: Some(element),
                link: Some(link),
                ..
            } => group.connect(peer).and_then(|()| {
                element
                    .group_rmb()
                    .register(link.place)
                    .map_err(|_| Diagnosis::REGISTER_RMB)
            }),
            _ => Err(Diagnosis::INTERNAL),
        };
        let Machine::Server(server) = &mut state.machine else {
            return;
        };
        // Late: a Decline has come, and its action follows.
        let _ = match result {
            Ok(()) => server.handle_link_connected(now()),
            Err(reason) => server.handle_link_refused(reason),
        };
    }

    /// Server, first contact: CONFIRM LINK and what follows.
    #[inline(never)]
    pub(super) fn start_link(self: &Arc<Self>, state: &mut State, peer: &Peer) {
        let (Some((group, _)), Some(local)) = (
            state.draft.group.clone(),
            state.draft.link.as_ref().and_then(|link| link.local()),
        ) else {
            return;
        };
        group.start(self.clone(), local.into(), peer);
    }
}

/// The link that the CLC message will name, if it works. It may have gone while the peer was asked about an RMB: a
/// server takes another one then, a client has been told which.
fn working_link(draft: &mut Draft, group: &Group, first: bool) -> Option<Arc<Link>> {
    let link = draft.link.clone()?;
    if first || group.is_link_up(&link) {
        return Some(link);
    }
    if group.role == Role::Client {
        return None;
    }
    let seat = group.other_seat()?;
    let link = (*seat).clone();
    draft.seat = Some(seat);
    draft.link = Some(link.clone());
    Some(link)
}
