# SPDX-License-Identifier: GPL-2.0
"""Socket options of a TCP socket, with values that fit and do not, and how each is read."""

import struct

SOL_SOCKET, IPPROTO_IP, IPPROTO_TCP, IPPROTO_IPV6 = 1, 0, 6, 41
TIME = struct.pack("ll", 7, 0)

# Name: level, number, values to set. An integer is set as 32 bits; a value of another length as it
# is. After each attempt the option is read.
OPTIONS = {
    "SO_DEBUG": (SOL_SOCKET, 1, [1, 0]),
    "SO_REUSEADDR": (SOL_SOCKET, 2, [1, b"\0", 1]),
    "SO_TYPE": (SOL_SOCKET, 3, [1]),
    "SO_ERROR": (SOL_SOCKET, 4, [1]),
    "SO_DONTROUTE": (SOL_SOCKET, 5, [1, 0]),
    "SO_BROADCAST": (SOL_SOCKET, 6, [1, 0]),
    "SO_SNDBUF": (SOL_SOCKET, 7, [40000, 0, 90000, b"\1\2"]),
    "SO_RCVBUF": (SOL_SOCKET, 8, [40000, 0, 90000]),
    "SO_KEEPALIVE": (SOL_SOCKET, 9, [1, 0, 5]),
    "SO_OOBINLINE": (SOL_SOCKET, 10, [1, 0]),
    "SO_NO_CHECK": (SOL_SOCKET, 11, [1, 0]),
    "SO_PRIORITY": (SOL_SOCKET, 12, [3, 6, 7, 0]),
    "SO_LINGER": (SOL_SOCKET, 13, [struct.pack("ii", 1, 3), b"\1\0\0\0", struct.pack("ii", 0, 0)]),
    "SO_REUSEPORT": (SOL_SOCKET, 15, [1, 0]),
    "SO_RCVLOWAT": (SOL_SOCKET, 18, [5, 0, -1, 1]),
    "SO_SNDLOWAT": (SOL_SOCKET, 19, [1]),
    "SO_RCVTIMEO": (SOL_SOCKET, 20, [TIME, struct.pack("ll", 0, -1), b"\1\0\0\0", bytes(16)]),
    "SO_SNDTIMEO": (SOL_SOCKET, 21, [TIME, bytes(16)]),
    "SO_TIMESTAMP": (SOL_SOCKET, 29, [1, 0]),
    "SO_ACCEPTCONN": (SOL_SOCKET, 30, [1]),
    "SO_SNDBUFFORCE": (SOL_SOCKET, 32, [70000]),
    "SO_RCVBUFFORCE": (SOL_SOCKET, 33, [70000]),
    "SO_TIMESTAMPNS": (SOL_SOCKET, 35, [1, 0]),
    "SO_MARK": (SOL_SOCKET, 36, [77, 0]),
    "SO_TIMESTAMPING": (SOL_SOCKET, 37, [0x58, 1 << 30, 0]),
    "SO_PROTOCOL": (SOL_SOCKET, 38, [6]),
    "SO_DOMAIN": (SOL_SOCKET, 39, [2]),
    "SO_RXQ_OVFL": (SOL_SOCKET, 40, [1, 0]),
    "SO_NOFCS": (SOL_SOCKET, 43, [1, 0]),
    "SO_SELECT_ERR_QUEUE": (SOL_SOCKET, 45, [1, 0]),
    "SO_BUSY_POLL": (SOL_SOCKET, 46, [30, -1, 0]),
    "SO_MAX_PACING_RATE": (SOL_SOCKET, 47, [1 << 30, struct.pack("Q", (1 << 64) - 1)]),
    "SO_INCOMING_CPU": (SOL_SOCKET, 49, [1]),
    "SO_INCOMING_NAPI_ID": (SOL_SOCKET, 56, [1]),
    "SO_TXREHASH": (SOL_SOCKET, 74, [1, 0, 9]),
    "SO_BINDTOIFINDEX": (SOL_SOCKET, 62, [0, -1]),
    "SO_PREFER_BUSY_POLL": (SOL_SOCKET, 69, [1, 0]),
    "SO_BUSY_POLL_BUDGET": (SOL_SOCKET, 70, [8]),
    "SO_BUF_LOCK": (SOL_SOCKET, 72, [3, 0, 9]),
    "SO of no meaning": (SOL_SOCKET, 999, [1]),
    "TCP_NODELAY": (IPPROTO_TCP, 1, [1, 0, b"\1", 1]),
    "TCP_MAXSEG": (IPPROTO_TCP, 2, [1000, 1, 70000]),
    "TCP_CORK": (IPPROTO_TCP, 3, [1, 0]),
    "TCP_KEEPIDLE": (IPPROTO_TCP, 4, [77, 0, 32768, 5000]),
    "TCP_KEEPINTVL": (IPPROTO_TCP, 5, [7, 0, 32768]),
    "TCP_KEEPCNT": (IPPROTO_TCP, 6, [4, 0, 128]),
    "TCP_SYNCNT": (IPPROTO_TCP, 7, [3, 0, 200]),
    "TCP_LINGER2": (IPPROTO_TCP, 8, [30, -5, 100000]),
    "TCP_DEFER_ACCEPT": (IPPROTO_TCP, 9, [5, 0]),
    "TCP_WINDOW_CLAMP": (IPPROTO_TCP, 10, [60000, b""]),
    "TCP_QUICKACK": (IPPROTO_TCP, 12, [0, 1]),
    "TCP_CONGESTION": (IPPROTO_TCP, 13, [b"reno", b"nosuch", b"", b"cubic"]),
    "TCP_THIN_LINEAR": (IPPROTO_TCP, 16, [1, 2, 0]),
    "TCP_THIN_DUPACK": (IPPROTO_TCP, 17, [1, 2, 0]),
    "TCP_USER_TIMEOUT": (IPPROTO_TCP, 18, [30000, -1, 0]),
    "TCP_QUEUE_SEQ": (IPPROTO_TCP, 21, [1]),
    "TCP_NOTSENT_LOWAT": (IPPROTO_TCP, 25, [4000, -1]),
    "TCP_SAVE_SYN": (IPPROTO_TCP, 27, [1, 5, 0]),
    "TCP_INQ": (IPPROTO_TCP, 36, [1, 2, 0]),
    "TCP_TX_DELAY": (IPPROTO_TCP, 37, [0, -1]),
    "TCP of no meaning": (IPPROTO_TCP, 999, [1]),
    "IP_TOS": (IPPROTO_IP, 1, [0x10, b"\x20", b"", 0]),
    "IP_TTL": (IPPROTO_IP, 2, [33, 0, 256, b"\x21", -1]),
    "IP_RECVOPTS": (IPPROTO_IP, 6, [1, 0]),
    "IP_PKTINFO": (IPPROTO_IP, 8, [1, 0]),
    "IP_PKTOPTIONS": (IPPROTO_IP, 9, [1]),
    "IP_MTU_DISCOVER": (IPPROTO_IP, 10, [2, 9, 1]),
    "IP_RECVERR": (IPPROTO_IP, 11, [1, 0]),
    "IP_RECVTTL": (IPPROTO_IP, 12, [1, 0]),
    "IP_RECVTOS": (IPPROTO_IP, 13, [1, 0]),
    "IP_FREEBIND": (IPPROTO_IP, 15, [1, 0]),
    "IP_MINTTL": (IPPROTO_IP, 21, [2, 256, 0]),
    "IP_CHECKSUM": (IPPROTO_IP, 23, [1, 0]),
    "IP_BIND_ADDRESS_NO_PORT": (IPPROTO_IP, 24, [1, 0]),
    "IP_MULTICAST_TTL": (IPPROTO_IP, 33, [5]),
    "IP_LOCAL_PORT_RANGE": (IPPROTO_IP, 51, [0]),
    "IP of no meaning": (IPPROTO_IP, 999, [1]),
    "no such level": (4242, 1, [1]),
}

# The same for sockets of IPv6.
OPTIONS6 = {
    "IPV6_UNICAST_HOPS": (IPPROTO_IPV6, 16, [44, 300, -1]),
    "IPV6_MTU_DISCOVER": (IPPROTO_IPV6, 23, [2, 1]),
    "IPV6_RECVERR": (IPPROTO_IPV6, 25, [1, 0]),
    "IPV6_V6ONLY": (IPPROTO_IPV6, 26, [1]),
    "IPV6_FLOWINFO_SEND": (IPPROTO_IPV6, 33, [1, 0]),
    "IPV6_RECVPKTINFO": (IPPROTO_IPV6, 49, [1, 0]),
    "IPV6_RECVHOPLIMIT": (IPPROTO_IPV6, 51, [1, 0]),
    "IPV6_DONTFRAG": (IPPROTO_IPV6, 62, [1, 0]),
    "IPV6_RECVTCLASS": (IPPROTO_IPV6, 66, [1, 0]),
    "IPV6_TCLASS": (IPPROTO_IPV6, 67, [0x20, 256, -1]),
    "IPV6_AUTOFLOWLABEL": (IPPROTO_IPV6, 70, [1, 0]),
    "IPV6_MINHOPCOUNT": (IPPROTO_IPV6, 73, [2, 0]),
    "IPV6 of no meaning": (IPPROTO_IPV6, 999, [1]),
    "TCP_MAXSEG": OPTIONS["TCP_MAXSEG"],
    "TCP_KEEPIDLE": OPTIONS["TCP_KEEPIDLE"],
    "SO_MARK": OPTIONS["SO_MARK"],
}

# Beyond the highest number that any kernel has at the level.
ENDS = {SOL_SOCKET: 100, IPPROTO_IP: 90, IPPROTO_TCP: 60, IPPROTO_IPV6: 90}

# What says something else for each socket, or does what only the socket's own test may do.
APART = {
    (SOL_SOCKET, 55): "SO_MEMINFO: tells of buffers",
    (SOL_SOCKET, 57): "SO_COOKIE: the socket's own number",
    (IPPROTO_TCP, 11): "TCP_INFO: tells of traffic",
    (IPPROTO_TCP, 19): "TCP_REPAIR: refused",
    (IPPROTO_TCP, 24): "TCP_TIMESTAMP: tells the time",
    (IPPROTO_TCP, 26): "TCP_CC_INFO: tells of traffic",
    (IPPROTO_TCP, 31): "TCP_ULP: refused",
    (IPPROTO_TCP, 35): "TCP_ZEROCOPY_RECEIVE: takes an address",
    (IPPROTO_IPV6, 1): "IPV6_ADDRFORM: refused",
}


def rest(table, levels):
    """All numbers of the levels that a table lacks, whatever they mean."""
    known = {entry[:2] for entry in table.values()} | set(APART)
    return {f"level {level} option {number}": (level, number, [0, 1])
            for level in levels for number in range(ENDS[level]) if (level, number) not in known}


REST = rest(OPTIONS, (SOL_SOCKET, IPPROTO_IP, IPPROTO_TCP))
REST6 = rest(OPTIONS6, (IPPROTO_IPV6, ))
