// SPDX-License-Identifier: GPL-2.0

//! What a peer does once it is connected: a list of steps, written as text or by the name of a mode.
//!
//! A script is a list of steps with commas between them:
//!
//! | Step | Meaning |
//! |---|---|
//! | `hex:BYTES`, `text:WORDS` | sends these bytes |
//! | `urgent:WORDS` | sends these bytes, the last one as urgent data |
//! | `proposal`, `accept`, `confirm` | sends such a message, version 1 |
//! | `decline`, `decline:CODE`, `decline2` | sends a decline of version 1 or 2 |
//! | `random:N`, `zero:N` | sends so many bytes |
//! | `drip:MS` | from here on, bytes go one by one, with so many milliseconds in between |
//! | `behind:WORDS` | adds these bytes to the message before, in the same segment, the last one as urgent data |
//! | `cut:N`, `set:AT=BYTE` | drops all but N bytes of the message before, or changes one byte |
//! | `wait:KIND` | waits for a CLC message of this kind, or any |
//! | `read:N` | waits until so many bytes have come |
//! | `sleep:MS` | waits |
//! | `fin`, `rst` | ends the sending side, or the connection |
//!
//! After the last step, the peer looks on until the other side ends the connection or the time is
//! over.

use super::clc::{self, Identity};
use crate::stream::Stream;
use std::time::Duration;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send bytes, with a pause after each if there is one.
    Send(Vec<u8>, Option<Duration>),
    /// Send bytes, the last of which is urgent.
    Urgent(Vec<u8>),
    /// Wait for a CLC message; without a kind, for any.
    WaitMessage(Option<String>),
    /// Wait until so many bytes have come that are not CLC.
    WaitBytes(usize),
    /// Wait.
    Sleep(Duration),
    /// End the sending side.
    Fin,
    /// Reset.
    Rst,
}

/// Modes: name, script as a client, script as a server, purpose.
pub const MODES: &[(&str, &str, &str, &str)] = &[
    ("silent", "", "", "says nothing"),
    ("garbage", "random:200", "wait:proposal,random:200", "bytes that are not CLC"),
    ("truncated", "proposal,cut:30", "wait:proposal,accept,cut:40", "part of a message, then silence"),
    (
        "truncated-fin",
        "proposal,cut:30,fin",
        "wait:proposal,accept,cut:40,fin",
        "part of a message, then the end of the stream",
    ),
    ("header-only", "proposal,cut:8", "wait:proposal,accept,cut:8", "a header, then silence"),
    (
        "oversize",
        "proposal,cut:52,set:5=255,set:6=255,zero:65483",
        "wait:proposal,accept,cut:68,set:5=255,set:6=255,zero:65467",
        "a message of 65535 bytes",
    ),
    (
        "undersize",
        "proposal,cut:12,set:5=0,set:6=4",
        "wait:proposal,accept,cut:12,set:5=0,set:6=4",
        "a message with a length below that of its header",
    ),
    ("trailer", "proposal,set:51=216", "wait:proposal,accept,set:67=216", "a wrong trailer"),
    ("version-0", "proposal,set:7=0", "wait:proposal,accept,set:7=8", "version 0"),
    ("kind", "proposal,set:4=9", "wait:proposal,accept,set:4=9", "a message of unknown kind"),
    ("zero-gid", "proposal,set:16=0,set:17=0,set:24=0,set:25=0,set:26=0,set:27=0,set:28=0,set:29=0,set:30=0,set:31=0",
     "wait:proposal,accept,set:16=0,set:17=0,set:24=0,set:25=0,set:26=0,set:27=0,set:28=0,set:29=0,set:30=0,set:31=0",
     "a GID of zero"),
    ("subnet", "proposal,set:40=203,set:41=0,set:42=113", "wait:proposal,accept", "a subnet that does not match"),
    ("prefixes", "proposal,set:47=9", "wait:proposal,accept,set:45=0", "nine prefixes; element 0 as a server"),
    ("drip", "drip:20,proposal", "wait:proposal,drip:20,accept", "a good message, byte by byte"),
    ("stall", "proposal,wait:accept", "wait:proposal,accept", "a good message, then silence"),
    (
        "stall-fin",
        "proposal,wait:accept,fin",
        "wait:proposal,accept,fin",
        "a good message, then the end of the stream",
    ),
    (
        "stall-rst",
        "proposal,wait:accept,rst",
        "wait:proposal,accept,sleep:100,rst",
        "a good message, then a reset",
    ),
    (
        "confirm",
        "proposal,wait:accept,confirm",
        "wait:proposal,accept,wait:confirm",
        "all messages of the rendezvous, for a queue pair that does not exist",
    ),
    (
        "confirm-garbage",
        "proposal,wait:accept,random:68",
        "wait:proposal,accept,wait:confirm,random:68",
        "garbage after the first message",
    ),
    ("decline", "decline,text:hello", "wait:proposal,decline,text:hello", "a decline, then data"),
    ("decline2", "decline2,text:hello", "wait:proposal,decline2,text:hello", "a decline of version 2, then data"),
    (
        "late-decline",
        "proposal,wait:accept,decline,text:hello",
        "wait:proposal,accept,wait:confirm,decline,text:hello",
        "a decline at the last moment, then data",
    ),
    (
        "decline-urgent",
        "proposal,wait:accept,confirm,set:50=0,wait:decline,hex:e2,urgent:X",
        "wait:proposal,accept,set:50=0,wait:decline,hex:e2,urgent:X",
        "a message that is declined, then what a decline begins with, and an urgent byte",
    ),
    (
        "decline-crossed",
        "proposal,wait:accept,confirm,set:50=0,wait:decline,decline",
        "wait:proposal,accept,set:50=0,wait:decline,decline",
        "a message that is declined, and a decline that crosses that",
    ),
    (
        "decline-begun",
        "proposal,wait:accept,confirm,set:50=0,wait:decline,decline,cut:5",
        "wait:proposal,accept,set:50=0,wait:decline,decline,cut:5",
        "a message that is declined, and what a decline begins with",
    ),
    ("fin", "fin", "fin", "the end of the stream at once"),
    ("rst", "rst", "rst", "a reset at once"),
];

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a number that fits"))
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or("not hexadecimal");
    if bytes.len() % 2 != 0 {
        return Err("an odd number of hexadecimal digits".into());
    }
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| Ok((digit(pair[0])? * 16 + digit(pair[1])?) as u8))
        .collect()
}

/// Most bytes that a step may send.
const MOST: usize = 1 << 20;

/// Reads a script.
pub fn parse(text: &str, identity: &Identity, seed: u64) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut pause = None;
    for step in text
        .split(',')
        .map(str::trim)
        .filter(|step| !step.is_empty())
    {
        let (name, value) = step.split_once(':').unwrap_or((step, ""));
        let amount = || match number::<usize>(value)? {
            amount if amount <= MOST => Ok(amount),
            _ => Err(format!("`{step}` is more than {MOST} bytes")),
        };
        let code = || match value.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).map_err(|error| error.to_string()),
            None if value.is_empty() => Ok(0x0303_0000),
            None => number(value),
        };
        let bytes = match name {
            "hex" => hex(value)?,
            "text" => value.as_bytes().to_vec(),
            "proposal" => clc::proposal(identity),
            "accept" => clc::accept(identity),
            "confirm" => clc::confirm(identity),
            "decline" => clc::decline(identity, 1, code()?),
            "decline2" => clc::decline(identity, 2, code()?),
            "zero" => vec![0; amount()?],
            "random" => {
                let mut bytes = vec![0; amount()?];
                Stream::new(seed, steps.len() as u64).fill(0, &mut bytes);
                bytes
            }
            "drip" => {
                pause = Some(Duration::from_millis(number(value)?));
                continue;
            }
            "cut" | "set" => {
                let Some(Step::Send(bytes, _)) = steps.last_mut() else {
                    return Err(format!("`{step}` has no message before it"));
                };
                change(name, value, bytes)?;
                continue;
            }
            "behind" => {
                let Some(Step::Send(mut bytes, None)) = steps.pop() else {
                    return Err(format!("`{step}` has no message before it"));
                };
                bytes.extend(value.as_bytes());
                steps.push(Step::Urgent(bytes));
                continue;
            }
            _ => {
                steps.push(match name {
                    "urgent" => Step::Urgent(value.as_bytes().to_vec()),
                    "wait" => Step::WaitMessage((!value.is_empty()).then(|| value.to_string())),
                    "read" => Step::WaitBytes(amount()?),
                    "sleep" => Step::Sleep(Duration::from_millis(number(value)?)),
                    "fin" => Step::Fin,
                    "rst" => Step::Rst,
                    _ => return Err(format!("`{step}` is not a step")),
                });
                continue;
            }
        };
        steps.push(Step::Send(bytes, pause));
    }
    Ok(steps)
}

fn change(name: &str, value: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
    if name == "cut" {
        bytes.truncate(number(value)?);
        return Ok(());
    }
    let (at, to) = value.split_once('=').ok_or("`set` wants AT=BYTE")?;
    let to = number(to)?;
    let at: usize = number(at)?;
    let byte = bytes
        .get_mut(at)
        .ok_or_else(|| format!("the message has no byte {at}"))?;
    *byte = to;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        mac: [2, 0, 0, 0, 0, 1],
        ip: [192, 0, 2, 1],
        prefix: 24,
    };

    fn steps(text: &str) -> Result<Vec<Step>, String> {
        parse(text, &IDENTITY, 1)
    }

    #[test]
    fn all_modes_can_be_read() {
        for (name, client, server, _) in MODES {
            for script in [client, server] {
                assert!(steps(script).is_ok(), "{name}: {:?}", steps(script));
            }
        }
    }

    #[test]
    fn modes_send_what_they_say() {
        let script = |name| MODES.iter().find(|mode| mode.0 == name).unwrap();
        let sent = |text: &str| {
            let steps = steps(text).unwrap().into_iter();
            steps
                .filter_map(|step| match step {
                    Step::Send(bytes, _) => Some(bytes),
                    _ => None,
                })
                .flatten()
                .collect::<Vec<u8>>()
        };
        for text in [script("oversize").1, script("oversize").2] {
            let bytes = sent(text);
            assert_eq!((bytes.len(), &bytes[5..7]), (65535, &[255, 255][..]));
        }
        let bytes = sent(script("zero-gid").1);
        assert_eq!((bytes.len(), &bytes[16..32]), (52, &[0; 16][..]));
        assert_eq!(sent(script("truncated").1), clc::proposal(&IDENTITY)[..30]);
        assert!(clc::read(&sent(script("trailer").1)).unwrap().is_err());
    }

    #[test]
    fn scripts() {
        let want = vec![
            Step::Send(vec![0xe2, 0xff], None),
            Step::Sleep(Duration::from_millis(5)),
            Step::Send(b"hi".to_vec(), Some(Duration::from_millis(10))),
            Step::Urgent(b"now".to_vec()),
            Step::WaitMessage(None),
            Step::WaitMessage(Some("accept".into())),
            Step::WaitBytes(9),
            Step::Fin,
            Step::Rst,
        ];
        assert_eq!(
            steps("hex:e2Ff, sleep:5, drip:10, text:hi, urgent:now, wait, wait:accept, read:9, fin, rst"),
            Ok(want)
        );
        assert_eq!(
            steps("text:one,behind:two"),
            Ok(vec![Step::Urgent(b"onetwo".to_vec())])
        );
        assert_eq!(steps(""), Ok(vec![]));
        for bad in [
            "nonsense",
            "hex:e",
            "hex:zz",
            "sleep",
            "sleep:x",
            "cut:1",
            "behind:x",
            "wait,behind:x",
            "proposal,set:99=0",
            "proposal,set:1=256",
            "proposal,set:1",
            "zero:9999999999",
            "decline:0xzz",
            "read:-1",
        ] {
            assert!(steps(bad).is_err(), "{bad}");
        }
    }
}
