"""Forwards Ethernet frames between interfaces, as a repeater does: loses some, and lets each wait for a random time.

usage: forward.py LOSS DELAY INTERFACE...   (a probability; seconds, the most that a frame waits)

Frames keep what the kernel has left to be done to them (checksums, segmentation), so that interfaces need no other
settings. On SIGTERM it says what it did, and ends.
"""

import heapq
import random
import select
import signal
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR = 263, 15
EVERYTHING = 3
OUTGOING = 4

loss, delay, names = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
chance = random.Random(0xEFA)
links = []
for name in names:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.bind((name, 0))
    link.setblocking(False)
    links.append(link)

waiting = []
forwarded = lost = overtaken = number = newest = 0
is_over = []
signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
print("forwards", flush=True)
while not is_over:
    now = time.monotonic()
    while waiting and waiting[0][0] <= now:
        _, count, origin, frame = heapq.heappop(waiting)
        overtaken += count < newest
        newest = max(newest, count)
        for link in links:
            if link is not origin:
                try:
                    link.send(frame)
                except OSError:
                    # Its link is down, or its queue is full: the network has lost it.
                    lost += 1
        forwarded += 1
    pause = max(0, waiting[0][0] - now) if waiting else 0.2
    for link in select.select(links, [], [], pause)[0]:
        try:
            frame, address = link.recvfrom(1 << 17)
        except OSError:
            continue
        if address[2] == OUTGOING:
            continue
        if chance.random() < loss:
            lost += 1
            continue
        number += 1
        heapq.heappush(waiting, (time.monotonic() + chance.random() * delay, number, link, frame))
print(f"{forwarded} frames forwarded, {overtaken} overtaken, {lost} lost", flush=True)
