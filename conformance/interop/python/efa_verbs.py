"""Uses an EFA device by the Python package `efa` the way an application would, and checks what comes.

usage: efa_verbs.py -p PORT           the server
       efa_verbs.py -p PORT ADDRESS   its client

Each side opens the device of its host. The server tells where its queue pair and its memory are, and
does as the client says. The client prints one line with what was checked and exits with 0.
"""

import ctypes
import json
import socket
import sys
import time

import efa

QKEY = 0x1111
SIZE = 1 << 20
CHUNK = 300_000
PATIENCE = 60
ALL_ACCESS = (
    efa.AccessFlags.LOCAL_WRITE
    | efa.AccessFlags.REMOTE_WRITE
    | efa.AccessFlags.REMOTE_READ
)
WITH_IMM = 2


class Memory:
    """Registered memory."""

    def __init__(self, pd, size, access):
        self.bytes = ctypes.create_string_buffer(size)
        self.mr = pd.reg_mr(ctypes.addressof(self.bytes), size, access)

    def __getitem__(self, place):
        return self.bytes.raw[place]

    def write(self, offset, data):
        ctypes.memmove(ctypes.addressof(self.bytes) + offset, data, len(data))


class Endpoint:
    """A queue pair with its completions and its memory."""

    def __init__(self):
        (device,) = efa.get_efa_device_list()
        self.context = device.open()
        self.pd = self.context.alloc_pd()
        self.channel = self.context.create_comp_channel()
        self.cq = self.context.create_cq_ex(
            256, channel=self.channel, sgid=True, unsolicited=True
        )
        self.qp = self.make_pair(efa.QPType.SRD)
        self.memory = Memory(self.pd, SIZE, ALL_ACCESS)

    def make_pair(self, kind):
        attributes = efa.QPInitAttr(
            send_cq=self.cq,
            recv_cq=self.cq,
            qp_type=kind,
            max_send_sge=2,
            unsolicited_write_recv=kind == efa.QPType.SRD,
        )
        return self.pd.create_qp(attributes).prepare(qkey=QKEY)

    def address(self, pair):
        return efa.local_endpoint_info(pair, qkey=QKEY).to_bytes().hex()

    def receive(self, pair, offset, length):
        sge = self.memory.mr.sge(length=length, offset=offset)
        pair.post_recv(efa.RecvWR(wr_id=offset, sg_list=[sge]))

    def completions(self, count):
        """Waits for completions, polling."""
        found = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            found += self.cq.poll(16)
            assert time.monotonic() < deadline, f"{len(found)} of {count} completions"
        assert len(found) == count, found
        return found

    def completion(self):
        return self.completions(1)[0]

    def slept_for(self):
        """Waits for the event that was asked for, and takes the completion it tells of."""
        event = self.channel.get_cq_event()
        assert event is self.cq, event
        self.cq.ack_events(1)
        return self.completion()


class Peer:
    """The other process, by lines of JSON."""

    def __init__(self, connection):
        self.file = connection.makefile("rw")

    def say(self, **what):
        print(json.dumps(what), file=self.file, flush=True)

    def hear(self):
        line = self.file.readline()
        assert line, "the peer is gone"
        return json.loads(line)


def expect(found, status, vendor_err=0):
    assert (found.status, found.vendor_err) == (status, vendor_err), (
        f"{found.status_str}, vendor error {found.vendor_err},"
        f" instead of {status}, {vendor_err}"
    )


def serve(endpoint, peer):
    """Posts receives for messages of the client and says what came; knows it when told to."""
    datagrams = endpoint.make_pair(efa.QPType.UD)
    mr = endpoint.memory.mr
    peer.say(
        srd=endpoint.address(endpoint.qp),
        ud=endpoint.address(datagrams),
        address=mr.addr,
        rkey=mr.rkey,
    )
    known = []
    while True:
        order = peer.hear()
        if order["do"] == "end":
            return
        if order["do"] == "know":
            info = efa.EndpointInfo.from_bytes(bytes.fromhex(order["who"]))
            known.append(info.peer(endpoint.pd))
            peer.say(ahn=known[-1].ah.ahn)
            continue
        if order["do"] == "receive":
            pair = datagrams if order["ud"] else endpoint.qp
            endpoint.receive(pair, 0, order["room"])
        endpoint.cq.req_notify()
        peer.say(ready=True)
        found = endpoint.slept_for()
        peer.say(
            status=found.status,
            byte_len=found.byte_len,
            imm=found.imm_data if found.wc_flags & WITH_IMM else None,
            sgid=found.sgid and found.sgid.hex(),
            unsolicited=found.unsolicited,
            opcode=int(found.opcode),
            data=endpoint.memory[: order["room"]].hex(),
        )


class Client:
    def __init__(self, endpoint, peer):
        self.endpoint, self.peer = endpoint, peer
        there = peer.hear()
        self.rkey, self.address = there["rkey"], there["address"]
        pd = endpoint.pd
        self.srd, self.ud = (
            efa.EndpointInfo.from_bytes(bytes.fromhex(there[name])).peer(pd)
            for name in ("srd", "ud")
        )
        self.own = endpoint.address(endpoint.qp)
        self.gid = self.own[:32]

    def post(self, opcode, pair=None, to=None, **fields):
        (pair or self.endpoint.qp).post_send(
            efa.SendWR(
                wr_id=7,
                opcode=opcode,
                send_flags=efa.SendFlags.SIGNALED,
                dest=to or self.srd,
                **fields,
            )
        )

    def sge(self, offset, length):
        return self.endpoint.memory.mr.sge(length=length, offset=offset)

    def ask(self, order, **fields):
        self.peer.say(do=order, room=200, ud=False, **fields)
        assert self.peer.hear() == {"ready": True}

    def queries(self):
        """Attributes, and the layouts that clients of the direct data path need."""
        endpoint = self.endpoint
        assert endpoint.context.is_efa()
        device = endpoint.context.query_efa_device()
        assert endpoint.context.query_port(1).max_msg_sz == 8928
        cq = endpoint.cq.query_efa()
        assert (cq.entry_size, cq.num_entries) == (32, 256)
        assert cq.buffer_addr and cq.doorbell_addr
        send, receive = endpoint.qp.query_wqs()
        assert (send.entry_size, receive.entry_size) == (64, 16)
        assert send.buffer_addr and receive.doorbell_addr
        assert endpoint.memory.mr.query_efa().ic_id_validity == 0
        assert self.srd.ah.ahn == self.ud.ah.ahn, "one number for one GID"
        assert endpoint.qp.state == efa.QPState.RTS
        return device

    def unknown_peer(self):
        """Before the server knows this host: messages arrive, RDMA is refused."""
        self.ask("receive")
        self.endpoint.memory.write(0, b"who am I")
        self.post(efa.WROpcode.SEND, sg_list=[self.sge(0, 8)])
        expect(self.endpoint.completion(), efa.WCStatus.SUCCESS)
        seen = self.peer.hear()
        assert (seen["sgid"], seen["byte_len"]) == (self.gid, 8), seen
        remote = {"remote_addr": self.address, "rkey": self.rkey}
        self.post(efa.WROpcode.RDMA_READ, sg_list=[self.sge(0, 8)], **remote)
        expect(self.endpoint.completion(), efa.WCStatus.REM_OP_ERR, 14)
        self.peer.say(do="know", who=self.own)
        self.peer.hear()

    def messages(self):
        self.ask("receive")
        message = bytes(range(150))
        self.endpoint.memory.write(0, message)
        self.post(
            efa.WROpcode.SEND_WITH_IMM,
            sg_list=[self.sge(0, 100), self.sge(100, 50)],
            imm_data=0x01020304,
        )
        expect(self.endpoint.completion(), efa.WCStatus.SUCCESS)
        seen = self.peer.hear()
        assert (seen["status"], seen["byte_len"], seen["imm"]) == (0, 150, 0x01020304), seen
        assert seen["sgid"] is None, "the sender is known now"
        assert bytes.fromhex(seen["data"])[:150] == message

    def datagrams(self):
        """They arrive behind a global route header of 40 bytes."""
        self.peer.say(do="receive", room=200, ud=True)
        assert self.peer.hear() == {"ready": True}
        pair = self.endpoint.make_pair(efa.QPType.UD)
        self.post(efa.WROpcode.SEND, pair, self.ud, sg_list=[self.sge(0, 20)])
        expect(self.endpoint.completion(), efa.WCStatus.SUCCESS)
        seen = self.peer.hear()
        data = bytes.fromhex(seen["data"])
        assert (seen["byte_len"], data[8:24].hex()) == (60, self.gid), seen
        assert data[40:60] == bytes(range(20))
        pair.close()

    def rdma(self):
        """Writes all of the server's memory in pieces, and reads it back elsewhere."""
        pattern = bytes(i * i % 251 for i in range(SIZE))
        memory = self.endpoint.memory
        memory.write(0, pattern)
        place = (memory.mr, self.srd, self.address, self.rkey)
        for make in (efa.write_wrs, efa.read_wrs):
            requests = make(*place, chunk=CHUNK)
            self.endpoint.qp.post_send(requests)
            for found in self.endpoint.completions(len(requests)):
                expect(found, efa.WCStatus.SUCCESS)
            if make is efa.write_wrs:
                memory.write(0, bytes(SIZE))
        assert memory[:] == pattern

    def unsolicited_write(self):
        """A write with immediate that takes no receive."""
        self.ask("await")
        self.post(
            efa.WROpcode.RDMA_WRITE_WITH_IMM,
            sg_list=[self.sge(0, 150)],
            remote_addr=self.address,
            rkey=self.rkey,
            imm_data=5,
        )
        expect(self.endpoint.completion(), efa.WCStatus.SUCCESS)
        seen = self.peer.hear()
        assert (seen["unsolicited"], seen["imm"], seen["byte_len"]) == (True, 5, 150), seen

    def refusals(self):
        """Wrong keys and places reach no memory; an unsignaled request is not even posted."""
        kept = self.endpoint.memory[:64]
        wrong = [
            {"remote_addr": self.address, "rkey": self.rkey ^ (1 << 20)},
            {"remote_addr": self.address + SIZE - 32, "rkey": self.rkey},
            {"remote_addr": self.address - 1, "rkey": self.rkey},
        ]
        for remote in wrong:
            for opcode in (efa.WROpcode.RDMA_READ, efa.WROpcode.RDMA_WRITE):
                self.post(opcode, sg_list=[self.sge(0, 64)], **remote)
                found = self.endpoint.completion()
                expect(found, efa.WCStatus.REM_ACCESS_ERR, 7)
        assert self.endpoint.memory[:64] == kept
        unsignaled = efa.SendWR(
            opcode=efa.WROpcode.SEND, dest=self.srd, sg_list=[self.sge(0, 8)]
        )
        try:
            self.endpoint.qp.post_send(unsignaled)
        except efa.EfaError as error:
            assert error.errno == 22, error
        else:
            raise AssertionError("an unsignaled request was posted")


def main(arguments):
    assert arguments[0] == "-p", __doc__
    # Of any address: the client may be on another host.
    place = ("", int(arguments[1]))
    endpoint = Endpoint()
    if len(arguments) == 2:
        with socket.create_server(place) as listener:
            listener.settimeout(PATIENCE)
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            serve(endpoint, Peer(connection))
        return
    peer = Peer(socket.create_connection((arguments[2], place[1]), timeout=PATIENCE))
    client = Client(endpoint, peer)
    device = client.queries()
    client.unknown_peer()
    client.messages()
    client.datagrams()
    client.rdma()
    client.unsolicited_write()
    client.refusals()
    peer.say(do="end")
    print(
        f"efa {efa.__version__}, capabilities {device.device_caps:#x}: queries, messages,"
        f" datagrams, {SIZE} bytes written and read, events, 8 kinds of refusals"
    )


main(sys.argv[1:])
