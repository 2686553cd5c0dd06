# SPDX-License-Identifier: Apache-2.0
"""A client written from docs/reference/protocol.md alone, and a service to talk to."""
import array
import atexit
import mmap
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

TINY = """model = tiny
group = gdn 16
part = 0 conv bf16 3x64 gdn
part = 0 recurrent f32 2x16x16 gdn
slots = 16
policy = lru
"""


# ---- MessagePack: what the protocol uses of it

def pack(value):
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(
            ">q", value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, (bytes, bytearray)):
        return b"\xc6" + struct.pack(">I", len(value)) + bytes(value)
    if isinstance(value, (list, tuple)):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))
    items = [pack(key) + pack(item) for key, item in value.items()]
    return b"\xdf" + struct.pack(">I", len(items)) + b"".join(items)


class Reader:
    """Takes one object from bytes; IndexError, struct.error when they end too early."""

    SIZES = {0xc4: 1, 0xc5: 2, 0xc6: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2,
             0xdf: 4}
    NUMBERS = {0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i",
               0xd3: ">q", 0xca: ">f", 0xcb: ">d"}

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise IndexError
        self.at += count
        return self.data[self.at - count:self.at]

    def read(self):
        byte = self.take(1)[0]
        if byte < 0x80:
            return byte
        if byte >= 0xe0:
            return byte - 256
        if byte in self.NUMBERS:
            form = self.NUMBERS[byte]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if byte in (0xc0, 0xc2, 0xc3):
            return {0xc0: None, 0xc2: False, 0xc3: True}[byte]
        if byte in self.SIZES:
            size = int.from_bytes(self.take(self.SIZES[byte]), "big")
        else:
            size = byte & (0x1f if 0xa0 <= byte < 0xc0 else 0x0f)
        if 0x80 <= byte < 0x90 or byte in (0xde, 0xdf):
            return {self.read(): self.read() for _ in range(size)}
        if 0x90 <= byte < 0xa0 or byte in (0xdc, 0xdd):
            return [self.read() for _ in range(size)]
        data = self.take(size)
        return data.decode() if 0xa0 <= byte < 0xc0 or byte in (0xd9, 0xda, 0xdb) else data


# ---- client

class Refused(Exception):
    def __init__(self, error):
        super().__init__(f"{error[1]}: {error[2]}")
        self.code, self.name, self.text = error


def tokens(values):
    return array.array("i", values).tobytes()


class Client:
    def __init__(self, address, timeout=20, hello=True, **words):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = socket.socket(socket.AF_INET)
        self.socket.settimeout(timeout)
        end = time.monotonic() + timeout
        while True:
            try:
                self.socket.connect(address)
                break
            except BlockingIOError:  # the queue of a Unix socket is full
                if time.monotonic() > end:
                    raise
                time.sleep(0.001)
        self.data, self.files, self.id = b"", [], 0
        self.info = self.call("hello", version=1, **words) if hello else None

    def send(self, method, **params):
        self.id += 1
        try:
            self.socket.sendall(pack([0, self.id, method, [params]]))
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it said before it closed is still to be read
        return self.id

    def receive(self):
        """[id, error, result]; files go to self.files."""
        while True:
            reader = Reader(self.data)
            try:
                message = reader.read() if self.data else None
            except (IndexError, struct.error):
                message = None
            if message is not None:
                self.data = self.data[reader.at:]
                assert message[0] == 1 and len(message) == 4, message
                return message[1:]
            data, files, _, _ = socket.recv_fds(self.socket, 1 << 20, 250)
            if not data:
                raise ConnectionError("closed")
            self.data += data
            self.files += files

    def call(self, method, **params):
        sent = self.send(method, **params)
        ident, error, result = self.receive()
        if error:
            raise Refused(error)
        assert ident == sent, (ident, sent)
        return result

    def file(self):
        """The next file that came, mapped as far as it may be."""
        fd = self.files.pop(0)
        try:
            return mmap.mmap(fd, os.fstat(fd).st_size)
        except PermissionError:
            return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def write(self, key, fill):
        """Writes a state of bytes `fill`; what commit says, or None: it is there."""
        begun = self.call("write_begin", key=key)
        if begun["exists"]:
            return None
        if self.info["files"]:
            state = self.file()
            state[:] = fill
            state.close()
        else:
            self.call("write_data", write=begun["write"], offset=0, data=fill)
        return self.call("write_commit", write=begun["write"])["stored"]

    def close(self):
        for fd in self.files:
            os.close(fd)
        self.socket.close()


# ---- service

class Service:
    """statecached in a folder of its own."""

    def __init__(self, program, config=TINY, words=(), files=None, **popen):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sc-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.path = str(self.folder / "socket")
        self.file = self.folder / "statecached.conf"
        self.file.write_text(f"socket = {self.path}\n" + config.replace("@", str(self.folder)))
        for name, text in (files or {}).items():
            (self.folder / name).write_text(text)
        self.log = self.folder / "log"
        self.program, self.words, self.popen = program, words, popen
        self.process = None
        atexit.register(self.end)
        self.start()

    def end(self):
        """Of a test that failed before it stopped it."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def start(self):
        self.log.touch()
        self.begin = self.log.stat().st_size
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--config", str(self.file), *self.words], stderr=log,
                stdout=log, **self.popen)
        for _ in range(2000):
            if self.process.poll() is not None or "service.ready" in self.text():
                return
            time.sleep(0.01)
        raise TimeoutError(self.text())

    def text(self):
        """What this run has logged."""
        return self.log.read_bytes()[self.begin:].decode(errors="replace")

    def wait_for(self, what, seconds=20):
        end = time.monotonic() + seconds
        while what not in self.text():
            if time.monotonic() > end:
                raise TimeoutError(f"no '{what}' in the log:\n{self.text()}")
            time.sleep(0.01)

    def tcp(self):
        host, port = self.text().split(" tcp=")[1].split()[0].rsplit(":", 1)
        return (host, int(port))

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)
