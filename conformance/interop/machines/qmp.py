"""Gives commands to the monitor of a machine of QEMU (QMP), one after the other.

usage: qmp.py SOCKET COMMAND...
A command is its name, and behind a space its arguments in JSON; `wait NAME` waits for an event. A command that fails
ends the program with status 1.
"""

import json
import os
import socket
import sys


class Monitor:
    def __init__(self, path):
        # From its own directory the name is short enough for a socket's.
        os.chdir(os.path.dirname(path) or ".")
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.path.basename(path))
        self.stream = connection.makefile("rw")
        self.events = []
        self.read()
        self.command("qmp_capabilities", "")

    def read(self):
        line = self.stream.readline()
        if not line:
            sys.exit("qmp.py: the machine has ended")
        message = json.loads(line)
        if "event" in message:
            self.events.append(message["event"])
        return message

    def command(self, name, arguments):
        message = {"execute": name}
        if arguments:
            message["arguments"] = json.loads(arguments)
        print(json.dumps(message), file=self.stream, flush=True)
        while True:
            answer = self.read()
            if "error" in answer:
                sys.exit(f"qmp.py: {name}: {answer['error']['desc']}")
            if "return" in answer:
                return

    def wait(self, event):
        while event not in self.events:
            self.read()
        self.events.remove(event)


monitor = Monitor(sys.argv[1])
for words in sys.argv[2:]:
    name, _, arguments = words.partition(" ")
    if name == "wait":
        monitor.wait(arguments)
    else:
        monitor.command(name, arguments)
    print(words, flush=True)
