// SPDX-License-Identifier: GPL-2.0

//! What one host knows of the exchanges that must not overlap (RFC 7609 section 3.5.5.3), from the messages alone.

use smc_proto::{
    group::LinkIx,
    llc::{
        v2,
        AddLink,
        ConfirmRkey,
        Llc, //
    },
    wire::LinkNum, //
};

/// Whoever waits for an answer longer than this may give up.
const PATIENCE: u64 = 5_000;

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    /// A request or a reply about this link, a refusal, or a further step of the same exchange.
    Add(u8, Option<bool>),
    AddGoesOn,
    /// The end of it.
    Confirmed,
    Delete(u8, bool),
    /// An RKEY exchange: whether it is a reply, and whether more is to come.
    Rkey(bool, bool),
    Other,
}

/// An exchange that has begun: what for, on which link, and until when it is waited for.
type Known = Option<(u8, LinkIx, u64)>;

/// What a host knows.
#[derive(Debug, Default)]
pub struct Order {
    /// What the server has offered, as long as it is not known whether it is refused.
    offer: Known,
    adding: Known,
    deleting: Known,
    own_rkey: Known,
    peer_rkey: Known,
}

fn read(bytes: &[u8]) -> Text {
    let number = |link: Option<LinkNum>| link.map_or(0, LinkNum::get);
    let add = |message: &AddLink| match (message.reply, message.link) {
        (true, _) => Text::Add(number(message.link), Some(message.reject.is_none())),
        (false, Some(link)) if message.mtu.is_some() => Text::Add(link.get(), None),
        // A client's hint.
        (false, _) => Text::Other,
    };
    let confirm = |reply| {
        if reply {
            Text::Confirmed
        } else {
            Text::AddGoesOn
        }
    };
    let rkey = |message: &ConfirmRkey, room| {
        Text::Rkey(message.reply, !message.negative && message.others > room)
    };
    if let Ok(message) = Llc::parse(bytes) {
        return match message {
            Llc::AddLink(message) => add(&message),
            Llc::AddLinkCont(_) => Text::AddGoesOn,
            Llc::ConfirmLink(message) => confirm(message.reply),
            Llc::DeleteLink(message) if !message.all => {
                Text::Delete(number(message.link), message.reply)
            }
            Llc::ConfirmRkey(message) => rkey(&message, 2),
            Llc::ConfirmRkeyCont(message) if message.reply => {
                Text::Rkey(true, !message.negative && message.left > 3)
            }
            Llc::DeleteRkey(message) => Text::Rkey(message.reply, false),
            _ => Text::Other,
        };
    }
    match v2::Llc::parse(bytes).unwrap().0 {
        v2::Llc::AddLink(message) => add(&message.base),
        v2::Llc::ConfirmLink(message) => confirm(message.reply),
        v2::Llc::DeleteLink(message) if !message.all => {
            Text::Delete(number(message.link), message.reply)
        }
        v2::Llc::ConfirmRkey(message) => rkey(&message, u8::MAX),
        v2::Llc::DeleteRkey(message) => Text::Rkey(message.reply, false),
        _ => Text::Other,
    }
}

impl Order {
    /// A message goes out; the error is what its sender knows to be under way.
    pub fn sent(
        &mut self,
        server: bool,
        link: LinkIx,
        bytes: &[u8],
        now: u64,
    ) -> Result<(), String> {
        let alive = |known: Known| known.filter(|(_, _, until)| *until > now);
        self.adding = alive(self.adding);
        self.deleting = alive(self.deleting);
        self.own_rkey = alive(self.own_rkey);
        self.peer_rkey = alive(self.peer_rkey);
        let text = read(bytes);
        let rkeys = self.own_rkey.or(self.peer_rkey);
        let in_the_way = match text {
            Text::Add(_, None) => self.adding.or(self.deleting).or(rkeys),
            // What cannot be completed is deleted.
            Text::Delete(number, false) if server => {
                let other = self.adding.filter(|(adding, ..)| *adding != number);
                self.deleting.or(other).or(rkeys)
            }
            Text::Rkey(false, _) => self.adding.or(self.deleting).or(self.own_rkey),
            _ => None,
        };
        if in_the_way.is_some() {
            return Err(format!("{text:?} while {self:?}"));
        }
        let begun = |number| Some((number, link, now + PATIENCE));
        match text {
            Text::Add(number, None) => self.adding = begun(number),
            Text::Delete(number, false) if server => {
                self.adding = None;
                self.deleting = begun(number);
            }
            Text::Rkey(false, _) => self.own_rkey = begun(0),
            Text::Rkey(true, true) => self.peer_rkey = self.peer_rkey.or(begun(0)),
            Text::Rkey(true, false) => self.peer_rkey = None,
            _ => self.step(text, now),
        }
        Ok(())
    }

    /// A message has come in.
    pub fn received(&mut self, server: bool, link: LinkIx, bytes: &[u8], now: u64) {
        let text = read(bytes);
        match text {
            Text::Add(number, None) => self.offer = Some((number, link, now + PATIENCE)),
            Text::Delete(_, true) => self.deleting = None,
            // The server has given it up.
            Text::Delete(number, false) if !server => {
                self.adding = self.adding.filter(|(adding, ..)| *adding != number);
            }
            Text::Rkey(true, false) => self.own_rkey = None,
            _ => self.step(text, now),
        }
    }

    /// A step of the addition of a link, whoever takes it.
    fn step(&mut self, text: Text, now: u64) {
        match (text, &mut self.adding) {
            (Text::Confirmed | Text::Add(_, Some(false)), adding) => *adding = None,
            (Text::AddGoesOn | Text::Add(_, Some(true)), Some((_, _, until))) => {
                *until = now + PATIENCE;
            }
            _ => {}
        }
    }

    /// What was under way on a link that carries nothing any more has failed.
    pub fn lost(&mut self, link: LinkIx) {
        let stays = |known: Known| known.filter(|(_, via, _)| *via != link);
        self.adding = stays(self.adding);
        self.deleting = stays(self.deleting);
        self.own_rkey = stays(self.own_rkey);
        self.peer_rkey = stays(self.peer_rkey);
    }

    /// Client: the offer is not refused at once.
    pub fn accept(&mut self) {
        self.adding = self.offer.take();
    }

    /// The link that was being added is given up, or refused.
    pub fn dropped(&mut self) {
        self.adding = None;
    }
}
