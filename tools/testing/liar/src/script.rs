// SPDX-License-Identifier: GPL-2.0

//! Scripts: a line is a step, in words; `#` starts a comment.

use crate::link::{kind, patch, Answer, Role};
use crate::verbs::{State, Work};
use crate::world::{number, World, SOON};
use smc_proto::cdc::RawCursor;
use smc_proto::clc::Message;
use smc_proto::wire::AlertToken;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

/// What scripts can say.
pub(crate) const HELP: &str = "\
Steps of a script, one in a line. L is the name of a link, C that of a connection; [x] may be left out.
In the end, nothing may have been written to our RMBs but what came with a message, and all cursors and tokens
that came have to be possible.

  link L client|server [v2=EID] [elements=N] [size=CODE]   a host of its own, with one queue pair
  further M L [keys=N]              a queue pair on the second device, for a further link of the group of L: a client
                                    answers ADD LINK with it, and tells of so many keys
  offer M                           server: ADD LINK for that link, and the answer
  add M                             the same, and all up to CONFIRM LINK
  move C M                          from now on a connection sends on another link
  connect C L HOST PORT             TCP connection with the option
  open C L HOST PORT                the same, and all up to where data flows
  listen C L PORT [ready=FILE]      as a server
  accepted C                        waits for the TCP connection of a client
  serve C                           the same, and all up to where data flows
  clc C proposal|accept|confirm|decline[:CODE]|decline-sync [set=AT:HEX]... [cut=N] [pad=N]
  tcp C hex:BYTES|zero:N|text:WORD  bytes over TCP
  drip C MS                         from now on byte by byte
  wait C proposal|accept|confirm|decline[:CODE] [raw] [SECONDS]   raw: leaves the queue pair alone
  confirm L                         CONFIRM LINK and ADD LINK of a server
  llc L KIND [reply] [via=M] [set=AT:HEX]... [len=N] [times=N] [vary=AT]   KIND also type:BYTE; via: sent on M
  answer L KIND now|never|MS|with:HEX|as [set=AT:HEX]...
                                    how requests of the other side are answered; flags to add; bytes to change
  reply L KIND [via=M] [set=AT:HEX]...   the answer to the last request of a kind: late, once more, or on M
  await L KIND [reply] [set=AT:HEX]... [SECONDS]     an LLC message with these bytes comes
  cdc C [prod=CURSOR] [cons=CURSOR] [seq=+N|N] [token=N|C] [prod-flags=HEX] [state-flags=HEX]
      [len=N] [times=N]             CURSOR: +N, -N (bytes from where it is), WRAP:COUNT
  write C WHERE [len=N] [rkey=+N|C] [fails]   WHERE: element+N, end+N (of the element), rmb+N, C
  read C WHERE [len=N] [rkey=+N|C] [fails]
  put C N                           the first bytes of an echo, not announced yet
  echo C N [put=N]                  sends bytes and expects them back
  claim C N                         tells of bytes that were never written; zeroes have to come back
  reflect C N                       so many bytes that come are sent back
  queue-pair L error|reset|gone
  deaf L                            takes no messages any more: the device of the other side repeats them for ever
  expect C abort|rst|end|open [SECONDS]          abort: by CDC, and TCP is reset
  expect C element-of|not-element-of D   whether the other side has given it the same element as D
  expect L down|up [SECONDS]
  close C, fin C, rst C             orderly, or only TCP
  leave                             DELETE LINK for all links of all groups that work
  sleep MS
  refused HOST PORT [SECONDS]       nobody listens there any more
  meet FILE SECONDS                 writes that file, and goes on when it is gone";

/// A line of a script.
pub(crate) struct Step {
    number: usize,
    text: String,
    words: Vec<String>,
}

/// Reads a script.
pub(crate) fn parse(text: &str, define: &[String]) -> Result<Vec<Step>, String> {
    let mut names = Vec::new();
    for define in define {
        let (name, value) = define.split_once('=').ok_or("NAME=TEXT is wanted")?;
        names.push((format!("${name}"), value));
    }
    let mut steps = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut line = line
            .split('#')
            .next()
            .unwrap_or_default()
            .trim()
            .to_string();
        for (name, value) in &names {
            line = line.replace(name, value);
        }
        if line.is_empty() {
            continue;
        }
        if line.contains('$') {
            return Err(format!("line {number}: something is not defined: {line}"));
        }
        steps.push(Step {
            number,
            words: line.split_whitespace().map(String::from).collect(),
            text: line,
        });
    }
    Ok(steps)
}

/// Does the steps; tells how many, and where and why one failed.
pub(crate) fn run(world: &mut World, steps: &[Step]) -> (usize, Option<(usize, String, String)>) {
    for (done, step) in steps.iter().enumerate() {
        world.trace(|| step.text.clone());
        let mut words = Words::new(&step.words);
        let result = one(world, &mut words).and_then(|()| words.finish());
        if let Err(error) = result {
            return (done, Some((step.number, step.text.clone(), error)));
        }
    }
    let kept = world.check_peer();
    let wrong = kept.map_err(|error| (0, "in the end".to_string(), error));
    (steps.len(), wrong.err())
}

/// The words of a step behind the first: those in order, and those with a name.
struct Words {
    plain: std::collections::VecDeque<String>,
    named: Vec<(String, String)>,
}

impl Words {
    fn new(words: &[String]) -> Self {
        let (mut plain, mut named) = (std::collections::VecDeque::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => named.push((name.to_string(), value.to_string())),
                None => plain.push_back(word.clone()),
            }
        }
        Self { plain, named }
    }

    fn next(&mut self) -> Result<String, String> {
        self.plain.pop_front().ok_or("a word is missing".into())
    }

    fn flag(&mut self, word: &str) -> bool {
        let place = self.plain.iter().position(|other| other == word);
        place.and_then(|place| self.plain.remove(place)).is_some()
    }

    fn named(&mut self, name: &str) -> Option<String> {
        let place = self.named.iter().position(|(other, _)| other == name)?;
        Some(self.named.remove(place).1)
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        self.named(name).map_or(Ok(default), |text| number(&text))
    }

    fn seconds(&mut self, default: f64) -> Result<f64, String> {
        match self.plain.pop_front() {
            Some(text) => text.parse().map_err(|_| format!("`{text}` are no seconds")),
            None => Ok(default),
        }
    }

    /// All of `set=AT:HEX`.
    fn patches(&mut self) -> Result<Vec<(usize, Vec<u8>)>, String> {
        let mut patches = Vec::new();
        while let Some(text) = self.named("set") {
            let (at, bytes) = text.split_once(':').ok_or("AT:HEX is wanted")?;
            patches.push((number(at)? as usize, hex(bytes)?));
        }
        Ok(patches)
    }

    fn finish(&self) -> Result<(), String> {
        match (self.plain.front(), self.named.first()) {
            (Some(word), _) | (None, Some((word, _))) => Err(format!("`{word}` is not known here")),
            (None, None) => Ok(()),
        }
    }
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("`{text}` is not hexadecimal");
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits
        .filter(|digits| digits.len() % 2 == 0)
        .ok_or_else(wrong)?;
    Ok(digits
        .chunks(2)
        .map(|pair| (pair[0] << 4) | pair[1])
        .collect())
}

fn kind_of(text: &str) -> Result<u8, String> {
    let known = kind::NAMES.iter().find(|(name, _)| *name == text);
    known
        .map(|(_, kind)| *kind)
        .ok_or(format!("no kind {text}"))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    Ok(Duration::from_millis(number(text)?))
}

fn one(world: &mut World, words: &mut Words) -> Result<(), String> {
    let verb = words.next()?;
    match verb.as_str() {
        "sleep" => {
            let time = milliseconds(&words.next()?)?;
            world.pause(time);
            Ok(())
        }
        "meet" => {
            let file = words.next()?;
            std::fs::write(&file, "").map_err(|error| format!("{file}: {error}"))?;
            world.until(words.seconds(SOON)?, "file is gone", |_| {
                Ok(!std::path::Path::new(&file).exists())
            })
        }
        "refused" => {
            let host: IpAddr = words.next()?.parse().map_err(|_| "not an address")?;
            let port = number(&words.next()?)? as u16;
            let what = "the connection is refused";
            world.until(words.seconds(SOON)?, what, |_| {
                let error = TcpStream::connect((host, port)).err();
                Ok(error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused))
            })
        }
        "link" => link(world, words),
        "further" => {
            let keys = words.number("keys", 1)? as u8;
            world.add_further(&words.next()?, &words.next()?, keys)
        }
        "offer" => world.offer_further(&words.next()?),
        "add" => world.add(&words.next()?),
        "move" => world.move_to(&words.next()?, &words.next()?),
        "connect" | "open" | "listen" | "accepted" | "serve" => enter(world, &verb, words),
        "clc" | "tcp" | "drip" | "wait" => rendezvous(world, &verb, words),
        "confirm" => world.confirm(&words.next()?),
        "llc" => llc(world, words),
        "answer" => answer(world, words),
        "reply" => reply(world, words),
        "await" => await_llc(world, words),
        "cdc" => cdc(world, words),
        "write" | "read" => access(world, verb == "read", words),
        "put" => {
            let conn = words.next()?;
            let len = number(&words.next()?)? as usize;
            world.put_echo(&conn, len)
        }
        "claim" => {
            let conn = words.next()?;
            let len = number(&words.next()?)? as usize;
            world.claim(&conn, len)
        }
        "leave" => world.leave(),
        "reflect" => {
            let conn = words.next()?;
            let len = number(&words.next()?)? as usize;
            world.reflect(&conn, len)
        }
        "echo" => {
            let conn = words.next()?;
            let len = number(&words.next()?)? as usize;
            let put = words.number("put", 0)? as usize;
            world.echo(&conn, len, put)
        }
        "queue-pair" => queue_pair(world, words),
        "deaf" => world.deafen(&words.next()?),
        "expect" => expect(world, words),
        "close" => close(world, &words.next()?),
        "fin" => {
            world.conn(&words.next()?)?.fin();
            Ok(())
        }
        "rst" => {
            world.conn(&words.next()?)?.reset();
            Ok(())
        }
        _ => Err(format!("no step {verb}")),
    }
}

fn link(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let role = match words.next()?.as_str() {
        "client" => Role::Client,
        "server" => Role::Server,
        _ => return Err("client or server?".into()),
    };
    let eid = words.named("v2");
    let elements = words.number("elements", 4)? as u8;
    let size = words.number("size", 0)? as u8;
    world.add_link(&name, role, eid.as_deref(), (elements, size))
}

fn enter(world: &mut World, verb: &str, words: &mut Words) -> Result<(), String> {
    let conn = words.next()?;
    match verb {
        "accepted" => return world.connected(&conn, SOON),
        "serve" => return world.serve(&conn),
        _ => {}
    }
    let link = words.next()?;
    if verb == "listen" {
        world.listen(&conn, &link, number(&words.next()?)? as u16)?;
        return match words.named("ready") {
            Some(file) => std::fs::write(&file, "").map_err(|error| format!("{file}: {error}")),
            None => Ok(()),
        };
    }
    let host = words.next()?.parse().map_err(|_| "not an address")?;
    let port = number(&words.next()?)? as u16;
    match verb {
        "open" => world.open(&conn, &link, host, port),
        _ => world.connect(&conn, &link, host, port),
    }
}

fn rendezvous(world: &mut World, verb: &str, words: &mut Words) -> Result<(), String> {
    let conn = words.next()?;
    let what = words.next()?;
    match verb {
        "drip" => {
            world.conn(&conn)?.drip = Some(milliseconds(&what)?);
            Ok(())
        }
        "tcp" => {
            let bytes = match what.split_once(':') {
                Some(("hex", text)) => hex(text)?,
                Some(("zero", count)) => vec![0; number(count)? as usize],
                Some(("text", text)) => text.as_bytes().to_vec(),
                _ => return Err("hex, zero or text?".into()),
            };
            world.conn(&conn)?.send_tcp(bytes);
            Ok(())
        }
        "clc" => {
            let mut message = world.clc(&conn, &what)?;
            patch(&mut message, &words.patches()?);
            let cut = words.number("cut", message.len() as u64)?;
            message.truncate(cut as usize);
            let pad = words.number("pad", 0)?;
            message.resize(message.len() + pad as usize, 0);
            world.conn(&conn)?.send_tcp(message);
            Ok(())
        }
        _ => {
            let bring_up = !words.flag("raw");
            let seconds = words.seconds(SOON)?;
            let (what, code) = what.split_once(':').unwrap_or((&what, ""));
            let came = world.wait_clc(&conn, what, bring_up, seconds)?;
            match came {
                Message::Decline(decline) if !code.is_empty() => {
                    let want = number(code)? as u32;
                    let got = decline.diagnosis.0;
                    (got == want)
                        .then_some(())
                        .ok_or(format!("declined for {got:#010x}"))
                }
                _ => Ok(()),
            }
        }
    }
}

fn llc(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let what = words.next()?;
    let reply = words.flag("reply");
    let mut message = match what.strip_prefix("type:") {
        Some(byte) => {
            let mut message = world.link(&name)?.blank(0);
            message[0] = number(byte)? as u8;
            message
        }
        None => world.sample(&name, kind_of(&what)?)?,
    };
    if reply {
        message[3] |= 0x80;
    }
    patch(&mut message, &words.patches()?);
    let len = words.number("len", message.len() as u64)? as usize;
    message.resize(len, 0);
    let name = words.named("via").unwrap_or(name);
    let vary = words.named("vary").map(|at| number(&at)).transpose()?;
    let mut last = None;
    for round in 0..words.number("times", 1)? {
        if let Some(place) = vary.map(|at| at as usize..at as usize + 4) {
            message[place].copy_from_slice(&(0x1000 + round as u32).to_be_bytes());
        }
        last = Some(world.post(&name, &message)?);
    }
    match last {
        Some(id) => world.is_done(&name, id).map(|_| ()),
        None => Ok(()),
    }
}

fn answer(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let kind = kind_of(&words.next()?)?;
    let answer = match words.next()?.as_str() {
        "now" => Answer::Now,
        "never" => Answer::Never,
        "as" => Answer::Set(words.patches()?),
        other => match other.strip_prefix("with:").map(hex).transpose()?.as_deref() {
            Some([flags]) => Answer::With(*flags),
            Some(_) => return Err("one byte of flags is wanted".into()),
            None => Answer::After(milliseconds(other)?),
        },
    };
    world.link(&name)?.answers.insert(kind, answer);
    Ok(())
}

fn reply(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let kind = kind_of(&words.next()?)?;
    let answer = world.link(&name)?.answered.get(&kind).cloned();
    let mut message = answer.ok_or("nothing was asked")?;
    patch(&mut message, &words.patches()?);
    let via = words.named("via").unwrap_or(name);
    let id = world.post(&via, &message)?;
    world.is_done(&via, id).map(|_| ())
}

fn await_llc(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let kind = kind_of(&words.next()?)?;
    let reply = words.flag("reply");
    let patches = words.patches()?;
    let seconds = words.seconds(SOON)?;
    world
        .take_llc(&name, kind, reply, &patches, seconds)
        .map(|_| ())
}

fn cursor(text: &str, at: impl Fn(i64) -> RawCursor) -> Result<RawCursor, String> {
    if let Some(ahead) = text.strip_prefix('+') {
        return Ok(at(number(ahead)? as i64));
    }
    if let Some(back) = text.strip_prefix('-') {
        return Ok(at(-(number(back)? as i64)));
    }
    let (wrap, count) = text.split_once(':').ok_or("WRAP:COUNT is wanted")?;
    Ok(RawCursor {
        wrap: number(wrap)? as u16,
        count: number(count)? as u32,
    })
}

fn cdc(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let conn = world.conn(&name)?;
    let cursors = conn.cursors.ok_or("not connected yet")?;
    let mut cdc = conn.cdc().ok_or("not connected yet")?;
    let last = conn.seq;
    if let Some(text) = words.named("prod") {
        cdc.prod = cursor(&text, |ahead| cursors.forged_producer(ahead))?;
    }
    if let Some(text) = words.named("cons") {
        cdc.cons = cursor(&text, |ahead| cursors.forged_consumer(ahead))?;
    }
    if let Some(text) = words.named("seq") {
        cdc.seq = match text.strip_prefix('+') {
            Some(ahead) => last.wrapping_add(number(ahead)? as u16),
            None => number(&text)? as u16,
        };
    }
    if let Some(text) = words.named("token") {
        cdc.token = match number(&text) {
            Ok(token) => AlertToken(token as u32),
            Err(_) => AlertToken(world.conn(&text)?.theirs.ok_or("no token yet")?.token),
        };
    }
    let mut message = cdc.emit().to_vec();
    let flags = |text: Option<String>| text.map(|text| hex(&text)).transpose();
    if let Some(bits) = flags(words.named("prod-flags"))? {
        patch(&mut message, &[(24, bits)]);
    }
    if let Some(bits) = flags(words.named("state-flags"))? {
        patch(&mut message, &[(25, bits)]);
    }
    patch(&mut message, &words.patches()?);
    let len = words.number("len", message.len() as u64)? as usize;
    message.resize(len, 0);
    let times = words.number("times", 1)?;
    let link = world.conn(&name)?.link.clone();
    let mut seq = cdc.seq;
    let mut id = 0;
    for round in 0..times {
        seq = cdc.seq.wrapping_add(round as u16);
        if len >= 4 {
            message[2..4].copy_from_slice(&seq.to_be_bytes());
        }
        id = world.post(&link, &message)?;
    }
    world.conn(&name)?.seq = seq;
    world.is_done(&link, id).map(|_| ())
}

fn access(world: &mut World, read: bool, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let place = words.next()?;
    let fails = words.flag("fails");
    let len = words.number("len", 8)? as usize;
    let conn = world.conn(&name)?;
    let link = conn.link.clone();
    let theirs = conn.theirs.ok_or("not connected yet")?;
    let element = theirs.rmb + theirs.offset;
    let to = match place.split_once('+') {
        Some(("element", n)) => element + number(n)?,
        Some(("end", n)) => element + u64::from(theirs.len) + number(n)?,
        Some(("rmb", n)) => theirs.rmb.wrapping_add(number(n)?),
        Some(_) => return Err(format!("where is {place}?")),
        None => {
            let other = world.conn(&place)?.theirs.ok_or("not connected yet")?;
            other.rmb + other.offset
        }
    };
    let rkey = match words.named("rkey") {
        None => theirs.rkey,
        Some(text) => match text.strip_prefix('+') {
            Some(ahead) => theirs.rkey.wrapping_add(number(ahead)? as u32),
            None => world.conn(&text)?.theirs.ok_or("not connected yet")?.rkey,
        },
    };
    let work = if read {
        Work::Read(to, rkey)
    } else {
        Work::Write(to, rkey)
    };
    let well = world.access(&link, &vec![0xbd; len], work)?;
    match (well, fails) {
        (true, true) => Err("it was let through".into()),
        (false, false) => Err("it failed".into()),
        _ => Ok(()),
    }
}

fn queue_pair(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let link = world.link(&name)?;
    match words.next()?.as_str() {
        "error" => link.set(State::Error),
        "reset" => link.set(State::Reset),
        "gone" => {
            link.destroy();
            Ok(())
        }
        _ => Err("error, reset or gone?".into()),
    }
}

fn expect(world: &mut World, words: &mut Words) -> Result<(), String> {
    let name = words.next()?;
    let what = words.next()?;
    if let "element-of" | "not-element-of" = what.as_str() {
        let same = world.is_same_element(&name, &words.next()?)?;
        return match (same, what == "element-of") {
            (true, false) => Err("it is the same element".into()),
            (false, true) => Err("it is another element".into()),
            _ => Ok(()),
        };
    }
    let seconds = words.seconds(SOON)?;
    match what.as_str() {
        "abort" => world.until(seconds, "abort and reset", |world| {
            let conn = world.conn(&name)?;
            Ok(conn.state.aborted && conn.is_reset())
        }),
        "rst" => world.until(seconds, "reset", |world| Ok(world.conn(&name)?.is_reset())),
        "end" => world.until(seconds, "end", |world| {
            let conn = world.conn(&name)?;
            Ok(conn.is_reset() || conn.is_ended())
        }),
        "open" => {
            world.pause(Duration::from_secs_f64(seconds.min(5.0)));
            let conn = world.conn(&name)?;
            let gone = conn.is_reset() || conn.is_ended() || conn.state.aborted;
            (!gone).then_some(()).ok_or("it has ended".into())
        }
        "up" => {
            // With data of its own: an answer to what was asked before says nothing of now. Asked again, as one
            // that has too much to answer drops what comes then.
            const AGAIN: f64 = 2.0;
            let data = [world.next_probe()];
            let mut message = world.link(&name)?.sample(kind::TEST_LINK);
            patch(&mut message, &data);
            let mut rest = seconds;
            loop {
                world.post(&name, &message)?;
                match world.take_llc(&name, kind::TEST_LINK, true, &data, rest.min(AGAIN)) {
                    Ok(_) => return Ok(()),
                    Err(error) if rest <= AGAIN => return Err(error),
                    Err(_) => rest -= AGAIN,
                }
            }
        }
        "down" => {
            let message = world.link(&name)?.sample(kind::TEST_LINK);
            let mut probes = 0;
            world.until(seconds, "end of the link", |world| {
                let link = world.link(&name)?;
                if link.broken.is_none() && link.is_quiet() {
                    probes += 1;
                    if probes % 100 == 1 {
                        link.post(&message)?;
                    }
                }
                Ok(link.broken.is_some())
            })
        }
        _ => Err(format!("what is {what}?")),
    }
}

/// Tells that nothing follows, waits for the same, and ends TCP.
fn close(world: &mut World, name: &str) -> Result<(), String> {
    let mut cdc = world.conn(name)?.cdc().ok_or("not connected yet")?;
    cdc.state_flags.closed = true;
    world.send_cdc(name, &cdc)?;
    world.until(SOON, "end", |world| {
        let conn = world.conn(name)?;
        Ok(conn.state.closed || conn.state.aborted || conn.is_ended() || conn.is_reset())
    })?;
    world.conn(name)?.fin();
    Ok(())
}
