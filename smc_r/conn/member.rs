// SPDX-License-Identifier: GPL-2.0

//! What a group does to each of its connections. All of it is for process context.

use core::ptr;

use kernel::sync::Arc;
use smc_proto::{
    conn::Events,
    group::{LinkIx, PeerElement},
};

use super::{with, Connection, MoveStage, Place, Route};
use crate::{
    buffers::SendRing,
    group::{ConnToken, Group, LinkSet, Standing},
    link::Link,
    socket::SocketRef,
};

/// A connection as its group knows it. Its socket may have given it up for another one meanwhile, of the same group or of
/// another one: nothing that is meant for the former happens to the latter.
pub(crate) struct Member<'a> {
    pub(crate) sk: SocketRef,
    pub(crate) group: &'a Group,
    pub(crate) token: ConnToken,
}

impl Member<'_> {
    /// Looks at the connection. `None` if it is gone.
    fn look<R>(&self, action: impl FnOnce(&Connection) -> Option<R>) -> Option<R> {
        let guard = self.sk.conn.lock();
        action(guard.as_ref().filter(|connection| self.is(connection))?)
    }

    /// Does `action` on the connection, and what follows from it. `None` if it is gone.
    pub(super) fn with<R>(&self, action: impl FnOnce(&mut Connection) -> (R, Events)) -> Option<R> {
        let action = |connection: &mut Connection| {
            if !self.is(connection) {
                return (None, Events::default());
            }
            let (result, events) = action(connection);
            (Some(result), events)
        };
        with(&self.sk, action).flatten()
    }

    fn is(&self, connection: &Connection) -> bool {
        connection.is_named(self.group, self.token)
    }

    /// Holds it if it has to do with one of these links, and lets it go on if not.
    pub(crate) fn hold(&self, links: impl Fn(LinkIx) -> bool) {
        self.with(|connection| {
            connection.hold(links);
            ((), Events::default())
        });
    }

    /// The last link is gone, or the group.
    pub(crate) fn link_failed(&self) {
        self.with(|connection| ((), connection.lose_link()));
    }

    /// The peer has taken away an element: if it is what the connection writes to, gives the link over which it has
    /// written.
    pub(crate) fn element_gone(&self, is_it: impl Fn(PeerElement) -> bool) -> Option<Arc<Link>> {
        self.with(|connection| {
            if !is_it(connection.peer.place) {
                return (None, Events::default());
            }
            (Some(connection.link.clone()), connection.lose_element())
        })
        .flatten()
    }

    /// The link `from` is down for good: if it is on that, or on its way to it, it goes on on another one.
    pub(crate) fn leave(&self, from: &Arc<Link>) {
        let (mut from, group) = (from.clone(), self.group);
        self.turn_back(&from);
        let mut tried = LinkSet::default();
        while let Some((ring, place)) = self.look(|connection| connection.leaving(&from)) {
            let Some((link, token)) = group.refuge(&place.element, tried) else {
                // The end of a group is the end of its connections, and comes on its own.
                if !group.is_over() {
                    self.link_failed();
                }
                return;
            };
            let Some(route) = Route::new(&link, ring, &place, token) else {
                tried.add(link.place);
                continue;
            };
            if self.switch(&from, route) == Some(false) {
                // It has got a ring, or given it back, meanwhile.
                continue;
            }
            tried.add(link.place);
            // Whoever was on it may have been moved before this one came.
            if group.standing(&link) != Standing::Lost {
                return;
            }
            link.stop();
            from = link;
        }
    }

    /// Stays where it is if it is on its way to a link.
    fn turn_back(&self, to: &Arc<Link>) {
        self.with(|connection| {
            let next = connection.next.as_ref();
            if next.is_some_and(|next| Arc::ptr_eq(&next.route.seat, to)) {
                connection.stay();
            }
            ((), Events::default())
        });
    }

    /// Goes on on another route, if it is still on the link `from`. False if that is not one for its ring.
    fn switch(&self, from: &Arc<Link>, route: Route) -> Option<bool> {
        // It goes after the lock: it may be the last that holds a ring.
        let mut route = Some(route);
        self.with(|connection| {
            if !Arc::ptr_eq(&connection.link, from) {
                return (true, Events::default());
            }
            match route.take_if(|route| connection.has_ring(route.ring.as_ref())) {
                Some(route) => (true, connection.switch(route)),
                None => (false, Events::default()),
            }
        })
    }

    /// Has it go on on another link, although its own works, when all that it has posted has arrived. False if
    /// it is on a third one, or cannot.
    pub(crate) fn move_over(&self, from: &Arc<Link>, to: &Arc<Link>) -> bool {
        let leaving = self.look(|connection| {
            let stays = connection.next.is_none();
            stays.then(|| connection.leaving(from)).flatten()
        });
        let route = leaving.and_then(|(ring, place)| {
            let token = self.group.key_on(to, &place.element)?;
            Route::new(to, ring, &place, token)
        });
        // As in `switch`.
        let Some(mut route) = route.map(Some) else {
            return false;
        };
        self.with(|connection| {
            let stays = connection.next.is_none() && Arc::ptr_eq(&connection.link, from);
            if stays {
                if let Some(route) = route.take_if(|route| connection.has_ring(route.ring.as_ref()))
                {
                    connection.go_to(route);
                }
            }
            (stays && connection.next.is_some(), Events::default())
        })
        .unwrap_or(false)
    }

    /// The group begins to ask whether all that was posted on a link has arrived: the link, if the connection waits for
    /// that, and `may_ask` has nothing against it.
    pub(crate) fn ask_arrived(&self, may_ask: impl FnOnce(LinkIx) -> bool) -> Option<LinkIx> {
        self.with(|connection| {
            let place = connection.link.place;
            let waits = connection
                .next
                .as_mut()
                .filter(|next| next.stage == MoveStage::Quiet && may_ask(place));
            let asks = waits.map(|next| {
                next.stage = MoveStage::Asked;
                place
            });
            (asks, Events::default())
        })
        .flatten()
    }

    /// All has arrived that had been posted on a link when the group began to ask: if it waited for that, it goes on on
    /// another one.
    pub(crate) fn has_arrived(&self, place: LinkIx) {
        self.with(|connection| {
            let stage = connection.next.as_ref().map(|next| next.stage);
            if connection.link.place == place && stage == Some(MoveStage::Asked) {
                connection.finish_move();
            }
            ((), Events::default())
        });
    }
}

impl Connection {
    /// Whether this is the connection with that token, and not one that its socket has got since.
    #[inline]
    pub(super) fn is_named(&self, group: &Group, token: ConnToken) -> bool {
        self.token == token && ptr::eq(Arc::as_ptr(&self.group), group)
    }

    /// What a move from `from` needs to know; `None` if it is not there any more.
    fn leaving(&self, from: &Arc<Link>) -> Option<(Option<Arc<SendRing>>, Place)> {
        let place = Place {
            element: self.peer.place,
            size: self.peer.size,
        };
        Arc::ptr_eq(&self.link, from).then(|| (self.ring_memory(), place))
    }
}
