"""NIXL on host memory: rank 1 writes into the memory of rank 0, and reads it back; notifications tell rank 0.

usage, as two ranks of an Open MPI job: nixl_pair.py BACKEND DIRECTORY, which both ranks see
"""

import ctypes
import sys
import time

import numpy

from ranks import LENGTH, PATTERN, RANK, Files, expect

backend, directory = sys.argv[1:]
# What the plug-in links with, and a machine without a GPU does not have.
ctypes.CDLL(f"{directory}/libcuda.so.1", ctypes.RTLD_GLOBAL)
from nixl_cu12 import nixl_agent, nixl_agent_config

files = Files(directory)
agent = nixl_agent(f"rank{RANK}", nixl_agent_config(backends=[backend]))
buffer = numpy.zeros(LENGTH, dtype=numpy.uint8)
own = agent.register_memory([(buffer.ctypes.data, LENGTH, 0, "")], "DRAM").trim()
other = 1 - RANK
files.put(f"agent{RANK}", agent.get_agent_metadata())
files.put(f"memory{RANK}", agent.get_serialized_descs(own))
peer = agent.add_remote_agent(files.get(f"agent{other}"))
remote = agent.deserialize_descs(files.get(f"memory{other}"))


def transfer(kind):
    handle = agent.initialize_xfer(kind, own, remote, peer, kind.encode())
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise SystemExit(f"{kind}: {state}")
    agent.release_xfer_handle(handle)


if RANK == 0:
    told = []
    while len(told) < 2:
        for notifications in agent.get_new_notifs().values():
            told += notifications
        time.sleep(0.002)
    expect(f"after {b' and '.join(told).decode()}", buffer)
    files.put("end", b"")
else:
    buffer[:] = PATTERN
    transfer("WRITE")
    buffer[:] = 0
    transfer("READ")
    expect("read", buffer)
    files.get("end")
