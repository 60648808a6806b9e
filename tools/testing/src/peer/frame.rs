// SPDX-License-Identifier: GPL-2.0

//! Frames: ARP, and TCP over IPv4 with the SMC option.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, TcpOption, TcpPacket,
    TcpSeqNumber,
};

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const TCP_LEN: usize = 20;
/// The option that shows SMC, padded to a multiple of four bytes (RFC 7609, appendix A.1).
const SMC_OPTION: [u8; 8] = [1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
/// Payload of a segment.
pub const MSS: usize = 1400;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ip: [u8; 4],
    /// TCP port.
    pub port: u16,
}

/// A segment that came, or is to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment, if there is one.
    pub ack: Option<u32>,
    /// SYN.
    pub syn: bool,
    /// FIN.
    pub fin: bool,
    /// RST.
    pub rst: bool,
    /// Urgent data ends behind so many bytes.
    pub urgent: Option<u16>,
    /// Window.
    pub window: u16,
    /// The SMC option is there.
    pub smc: bool,
    /// Data.
    pub data: Vec<u8>,
}

/// A frame that is of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Somebody asks for our MAC address.
    ArpRequest {
        /// MAC address of the one who asks.
        mac: [u8; 6],
        /// Its IPv4 address.
        ip: [u8; 4],
    },
    /// An answer to our question.
    ArpReply {
        /// MAC address.
        mac: [u8; 6],
        /// IPv4 address.
        ip: [u8; 4],
    },
    /// A segment for us.
    Tcp {
        /// Where it is from.
        from: End,
        /// Port that it is for.
        port: u16,
        /// The segment.
        segment: Segment,
    },
}

fn has_smc_option(mut options: &[u8]) -> bool {
    while let Ok((rest, option)) = TcpOption::parse(options) {
        match option {
            TcpOption::EndOfList => return false,
            TcpOption::Unknown { kind: 254, data } if data.starts_with(&SMC_OPTION[4..]) => {
                return true;
            }
            _ if rest.is_empty() => return false,
            _ => options = rest,
        }
    }
    false
}

/// Reads a frame. What is not for `ip` or cannot be read gives `None`. Checksums are not looked at:
/// between two ends on one machine they may be missing.
pub fn parse(bytes: &[u8], ip: [u8; 4]) -> Option<Frame> {
    let frame = EthernetFrame::new_checked(bytes).ok()?;
    match frame.ethertype() {
        EthernetProtocol::Arp => {
            let packet = ArpPacket::new_checked(frame.payload()).ok()?;
            let ArpRepr::EthernetIpv4 {
                operation,
                source_hardware_addr,
                source_protocol_addr,
                target_protocol_addr,
                ..
            } = ArpRepr::parse(&packet).ok()?
            else {
                return None;
            };
            if target_protocol_addr.octets() != ip {
                return None;
            }
            let (mac, ip) = (source_hardware_addr.0, source_protocol_addr.octets());
            match operation {
                ArpOperation::Request => Some(Frame::ArpRequest { mac, ip }),
                ArpOperation::Reply => Some(Frame::ArpReply { mac, ip }),
                ArpOperation::Unknown(_) => None,
            }
        }
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
            let whole = !packet.more_frags() && packet.frag_offset() == 0;
            if packet.dst_addr().octets() != ip || packet.next_header() != IpProtocol::Tcp || !whole
            {
                return None;
            }
            let tcp = TcpPacket::new_checked(packet.payload()).ok()?;
            let from = End {
                mac: frame.src_addr().0,
                ip: packet.src_addr().octets(),
                port: tcp.src_port(),
            };
            let segment = Segment {
                seq: tcp.seq_number().0 as u32,
                ack: tcp.ack().then_some(tcp.ack_number().0 as u32),
                syn: tcp.syn(),
                fin: tcp.fin(),
                rst: tcp.rst(),
                urgent: tcp.urg().then(|| tcp.urgent_at()),
                window: tcp.window_len(),
                smc: has_smc_option(tcp.options()),
                data: tcp.payload().to_vec(),
            };
            Some(Frame::Tcp {
                from,
                port: tcp.dst_port(),
                segment,
            })
        }
        _ => None,
    }
}

fn ethernet(from: [u8; 6], to: [u8; 6], kind: EthernetProtocol, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; ETHERNET_LEN + length];
    let header = EthernetRepr {
        src_addr: EthernetAddress(from),
        dst_addr: EthernetAddress(to),
        ethertype: kind,
    };
    header.emit(&mut EthernetFrame::new_unchecked(&mut bytes));
    bytes
}

/// An ARP frame from `from`: an answer to `to`, or a question for it to all.
pub fn arp(from: &End, to: &End, reply: bool) -> Vec<u8> {
    let operation = if reply {
        ArpOperation::Reply
    } else {
        ArpOperation::Request
    };
    let target = if reply { to.mac } else { [0xff; 6] };
    let packet = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(from.mac),
        source_protocol_addr: Ipv4Address::from(from.ip),
        target_hardware_addr: EthernetAddress(if reply { to.mac } else { [0; 6] }),
        target_protocol_addr: Ipv4Address::from(to.ip),
    };
    let mut bytes = ethernet(from.mac, target, EthernetProtocol::Arp, packet.buffer_len());
    packet.emit(&mut ArpPacket::new_unchecked(&mut bytes[ETHERNET_LEN..]));
    bytes
}

/// A frame with a segment.
pub fn tcp(from: &End, to: &End, segment: &Segment) -> Vec<u8> {
    let mut options = Vec::new();
    if segment.syn {
        options.extend([2, 4]);
        options.extend((MSS as u16).to_be_bytes());
        if segment.smc {
            options.extend(SMC_OPTION);
        }
    }
    let header_len = TCP_LEN + options.len();
    let tcp_len = header_len + segment.data.len();
    let mut bytes = ethernet(from.mac, to.mac, EthernetProtocol::Ipv4, IPV4_LEN + tcp_len);
    let (source, target) = (Ipv4Address::from(from.ip), Ipv4Address::from(to.ip));
    let header = Ipv4Repr {
        src_addr: source,
        dst_addr: target,
        next_header: IpProtocol::Tcp,
        payload_len: tcp_len,
        hop_limit: 64,
    };
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes[ETHERNET_LEN..]);
    header.emit(&mut packet, &ChecksumCapabilities::default());

    let mut tcp = TcpPacket::new_unchecked(packet.payload_mut());
    tcp.set_src_port(from.port);
    tcp.set_dst_port(to.port);
    tcp.set_seq_number(TcpSeqNumber(segment.seq as i32));
    tcp.set_ack_number(TcpSeqNumber(segment.ack.unwrap_or(0) as i32));
    tcp.clear_flags();
    tcp.set_header_len(header_len as u8);
    tcp.set_ack(segment.ack.is_some());
    tcp.set_syn(segment.syn);
    tcp.set_fin(segment.fin);
    tcp.set_rst(segment.rst);
    tcp.set_psh(!segment.data.is_empty());
    tcp.set_urg(segment.urgent.is_some());
    tcp.set_urgent_at(segment.urgent.unwrap_or(0));
    tcp.set_window_len(segment.window);
    tcp.options_mut().copy_from_slice(&options);
    tcp.payload_mut()[..segment.data.len()].copy_from_slice(&segment.data);
    tcp.fill_checksum(&IpAddress::Ipv4(source), &IpAddress::Ipv4(target));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: End = End {
        mac: [2, 0, 0, 0, 0, 1],
        ip: [192, 0, 2, 1],
        port: 1111,
    };
    const B: End = End {
        mac: [2, 0, 0, 0, 0, 2],
        ip: [192, 0, 2, 2],
        port: 2222,
    };

    #[test]
    fn segments_round_trip() {
        let segments = [
            Segment {
                syn: true,
                smc: true,
                seq: 7,
                window: 1400,
                ..Segment::default()
            },
            Segment {
                syn: true,
                seq: u32::MAX,
                ack: Some(8),
                ..Segment::default()
            },
            Segment {
                fin: true,
                ack: Some(9),
                urgent: Some(4),
                data: b"data".to_vec(),
                ..Segment::default()
            },
            Segment {
                rst: true,
                seq: 1,
                ..Segment::default()
            },
        ];
        for segment in segments {
            let frame = parse(&tcp(&A, &B, &segment), B.ip);
            assert_eq!(
                frame,
                Some(Frame::Tcp {
                    from: A,
                    port: B.port,
                    segment
                })
            );
        }
    }

    #[test]
    fn the_option_is_where_it_belongs_and_checksums_are_right() {
        let segment = Segment {
            syn: true,
            smc: true,
            ..Segment::default()
        };
        let bytes = tcp(&A, &B, &segment);
        let packet = Ipv4Packet::new_checked(&bytes[ETHERNET_LEN..]).unwrap();
        assert!(packet.verify_checksum());
        let tcp = TcpPacket::new_checked(packet.payload()).unwrap();
        assert!(tcp.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
        assert_eq!(
            tcp.options(),
            [2, 4, 5, 120, 1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]
        );
    }

    #[test]
    fn options_among_others() {
        assert!(!has_smc_option(&[]));
        assert!(!has_smc_option(&[1, 1, 1, 1]));
        assert!(!has_smc_option(&[254, 4, 0xf9, 0x89]));
        assert!(has_smc_option(&[
            254, 4, 0xf9, 0x89, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9
        ]));
        assert!(!has_smc_option(&[0, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!has_smc_option(&[254, 6, 0xe2, 0xd4]));
        assert!(!has_smc_option(&[254, 0, 0, 0]));
    }

    #[test]
    fn questions_and_answers() {
        let frame = parse(&arp(&A, &B, false), B.ip);
        assert_eq!(
            frame,
            Some(Frame::ArpRequest {
                mac: A.mac,
                ip: A.ip
            })
        );
        let frame = parse(&arp(&A, &B, true), B.ip);
        assert_eq!(
            frame,
            Some(Frame::ArpReply {
                mac: A.mac,
                ip: A.ip
            })
        );
    }

    #[test]
    fn frames_for_others_and_garbage() {
        let bytes = tcp(&A, &B, &Segment::default());
        assert_eq!(parse(&bytes, A.ip), None);
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length], B.ip), None, "cut to {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] = 0xff;
            // Anything but a panic is good.
            let _ = parse(&damaged, B.ip);
        }
    }
}
