# SPDX-License-Identifier: Apache-2.0
"""A consumer of events written from docs/reference/events.md alone, with pyzmq and msgpack."""
import collections
import hashlib
import struct
import time

import msgpack
import zmq

NONE = bytes.fromhex("9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0")
END = 2 ** 64 - 1


# ---- hashes

def cbor(value):
    def head(major, count):
        if count < 24:
            return bytes([major << 5 | count])
        size = next(size for size in (1, 2, 4, 8) if count < 256 ** size)
        first = major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[size]
        return bytes([first]) + count.to_bytes(size, "big")

    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(map(cbor, value))


def state_hash(tokens, block=16, marks=(), adapter=""):
    """Of the state after all `tokens`, as events name it. marks: (position, id)."""
    chain = NONE
    for at in range(0, len(tokens), block):
        extra = [["lora", adapter, ""]] if adapter else []
        extra += [["mm", ident.hex(), place - at] for place, ident in marks
                  if at <= place < min(at + block, len(tokens))]
        chain = hashlib.sha256(cbor([chain, list(tokens[at:at + block]), extra or None])).digest()
    return int.from_bytes(chain[-8:], "big")


def tenant_mark(name, meets=None):
    """The id of a tenant's mark; `meets`: the key's own at its place."""
    text = b"statecache tenant\0" + bytes([len(name)]) + name.encode()
    text += b"\0" if meets is None else b"\1" + meets
    return hashlib.sha256(text).digest()[:16]


# ---- consumer

FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
          "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
          "kv_cache_spec_sliding_window")
REMOVED_FIELDS = ("type", "block_hashes", "medium", "group_idx")


def named(event):
    """An event of either form as a map."""
    if isinstance(event, dict):
        return event
    fields = REMOVED_FIELDS if event[0] == "BlockRemoved" else FIELDS
    return {field: value for field, value in zip(fields, event) if value is not None}


class Consumer:
    """Keeps what is there: {(hash, medium): copies}, and the tokens of each hash."""

    context = zmq.Context.instance()

    def __init__(self, publish, replay=None, topic="", queue=100000, subscribe=True):
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, queue)
        self.socket.connect(publish)
        if subscribe:
            self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.replay_address = replay
        self.last, self.events, self.gaps, self.batches = -1, [], 0, 0
        self.copies, self.tokens = collections.Counter(), {}
        self.skip = 0          # so many batches are lost on their way
        self.forms = set()

    # -- what comes

    def apply(self, payload):
        batch = msgpack.unpackb(payload)
        assert len(batch) == 3 and isinstance(batch[0], float) and isinstance(batch[2], int), batch
        self.batches += 1
        for event in batch[1]:
            self.forms.add(type(event))
            self.one(named(event))

    def one(self, event):
        self.events.append(event)
        if event["type"] == "AllBlocksCleared":
            self.copies.clear()
            self.tokens.clear()
            return
        (state,) = event["block_hashes"]
        copy = (state, event["medium"])
        if event["type"] == "BlockRemoved":
            assert self.copies[copy] > 0, f"{copy} goes, and was not there"
            self.copies[copy] -= 1
            self.copies += collections.Counter()
            return
        assert event["type"] == "BlockStored", event
        parent = event.get("parent_block_hash")
        before = ()
        if parent is not None:
            assert any(self.copies[(parent, medium)] for medium in ("GPU", "CPU", "STORAGE")), event
            before = self.tokens[parent]
        assert event["block_size"] == len(event["token_ids"]) > 0, event
        assert event["kv_cache_spec_kind"] == "mamba", event
        self.tokens[state] = before + tuple(event["token_ids"])
        self.copies[copy] += 1

    def take(self, frames):
        """A message of the PUB socket; a gap before it is filled first."""
        _, number, payload = frames
        number = int.from_bytes(number, "big")
        if number <= self.last:
            return             # a replay had it
        if self.skip > 0:
            self.skip -= 1
            return
        if number != self.last + 1:
            self.gaps += 1
            self.replay(self.last + 1)
            if number <= self.last:
                return
        assert number == self.last + 1, (number, self.last)
        self.apply(payload)
        self.last = number

    def poll(self, seconds=0.05):
        """All that has come, and comes within so long after it."""
        count = 0
        while self.socket.poll(int(seconds * 1000)):
            self.take(self.socket.recv_multipart())
            count += 1
        return count

    def until(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < end, (self.last, self.copies)
            self.poll(0.01)

    # -- replay

    def ask(self, number, frames=None):
        """Replies to a request: [(number, payload)], of either form, without the end mark."""
        with self.context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self.replay_address)
            socket.send_multipart(frames or [b"", struct.pack(">Q", number)])
            replies = []
            while True:
                assert socket.poll(10000), "no reply"
                reply = socket.recv_multipart()
                assert reply[0] == b"" and len(reply) in (3, 4), reply
                self.topics = len(reply) == 4
                at = int.from_bytes(reply[-2], "big")
                if at == END:
                    assert reply[-1] == b"", reply
                    return replies
                replies.append((at, reply[-1]))

    def replay(self, number):
        replies = self.ask(number)
        for at, payload in replies:
            if at > self.last:
                self.apply(payload)
                self.last = at
        return replies

    def there(self, medium):
        return {state for (state, where), count in self.copies.items() if where == medium and count}

    def close(self):
        self.socket.close(0)
