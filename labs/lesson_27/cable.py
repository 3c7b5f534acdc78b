"""Cables with a firewall, in a process of our own.

The card of each host is a TAP device: what the host sends, this process reads, and hands the frame to the
card that it is for. Linux only.
"""

import fcntl
import os
import select
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from shared.runtime.children import FORK
from shared.runtime.errors import CourseError
from shared.runtime.run import die_with_launcher

MTU = 9000  # bytes of a packet: fewer ones than with 1500, because Python carries each of them
TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000  # frames alone, no header before them
AT_ONCE = 64  # frames to read from a card before others have their turn
SYN, ACK = 0x02, 0x10

Enter = Callable[[], None]  # moves this process into a host's network
Ports = Sequence[range]


def new_card(name: str = "eth0") -> int:
    """A TAP device in the network that this process is in; returns the end that this process holds."""
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return card


def opens_closed_port(frame: bytes, open_ports: Ports) -> bool:
    """Whether a frame asks for a TCP connection to a port that is not open. IPv4 alone."""
    is_tcp = frame[12:14] == b"\x08\x00" and frame[23] == 6
    if not is_tcp:
        return False
    header = 14 + 4 * (frame[14] & 15)
    flags = frame[header + 13]
    port = int.from_bytes(frame[header + 2 : header + 4], "big")
    return flags & (SYN | ACK) == SYN and not any(port in some for some in open_ports)


def carry(cards: list[int], open_ports: Ports) -> None:
    """Be the cables and the switch between the cards, for ever."""
    place: dict[bytes, int] = {}  # {address of a card: the card}
    while True:
        readable, _, _ = select.select(cards, [], [])
        for card in readable:
            for frame in frames_of(card):
                place[frame[6:12]] = card
                if opens_closed_port(frame, open_ports):
                    continue  # a firewall drops it, without an answer
                target = place.get(frame[:6])
                targets = [other for other in cards if other != card] if target is None else [target]
                for other in targets:
                    with suppress(OSError):  # the host is off, or its card is
                        os.write(other, frame)


def frames_of(card: int) -> list[bytes]:
    """What the card has sent meanwhile."""
    frames: list[bytes] = []
    with suppress(BlockingIOError):
        while len(frames) < AT_ONCE:
            frames.append(os.read(card, 2**16))
    return frames


class Cables:
    """A process that carries what hosts send. It makes their cards, and dies with this process."""

    def __init__(self, enter: Sequence[Enter], open_ports: Ports) -> None:
        ours, theirs = FORK.Pipe()
        self.process = FORK.Process(target=work, args=(theirs, enter, open_ports))
        self.process.start()
        theirs.close()
        try:
            told = ours.recv()
        except EOFError:
            told = "the process has ended"
        if told != "plugged in":
            self.close()
            raise CourseError(f"no cards could be made: {told}")

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def work(pipe: Connection, enter: Sequence[Enter], open_ports: Ports) -> None:
    die_with_launcher()
    cards = []
    try:
        for enter_network in enter:
            enter_network()
            cards.append(new_card())
    except OSError as error:
        pipe.send(str(error))
        return
    pipe.send("plugged in")
    carry(cards, open_ports)
