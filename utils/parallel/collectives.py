"""All-reduce written with send and receive: naive, tree and ring.

    all_reduce(gradient, "mean")                                  # the ring, in place
    handle = all_reduce(gradient, algorithm="tree", async_op=True)
    handle.wait()
    print(handle.bytes_sent)

After it every rank holds the sum (or mean) of all ranks' tensors, the same to the last bit: each number
is added up on one rank, in one order, and sent from there to the others. What one rank sends, for a
tensor of S bytes on n ranks:

    naive   all to rank 0, which adds and sends back    rank 0: (n - 1) S, each other: S
    tree    the same along a binomial tree              rank 0: log2(n) S (rounded up), a leaf: S
    ring    each rank adds up one n-th of the tensor    every rank: 2 (n - 1) / n S

The ring (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations")
loads no rank more than another, and hardly more with every rank that joins; the tree takes fewer rounds,
which counts for small tensors.
"""

import itertools
import threading
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from utils.errors import UserError

FIRST_TAG = 1 << 16  # below it are the tags of a program's own messages
HEADER_BYTES = 256

_tags = WeakKeyDictionary()  # of each group, so that tensors in flight at once do not mix up


def all_reduce(tensor, op="sum", *, algorithm="ring", group=None, async_op=False):
    """Replace ``tensor`` on every rank by the sum (or ``"mean"``) over the ranks, and return an ``AllReduce``.

    ``tensor`` has any shape and layout and any dtype that can be added; the sum is computed in it. Every
    rank of ``group`` must call with the same shape, dtype, op and algorithm, and all calls in the same
    order; with ``async_op`` the call returns at once, and the tensor must be left alone until ``wait``.
    It begins with a header from each rank to every other (on a GPU that is read back, and so waited for).
    Raises ``UserError`` on all ranks where they do not agree, and for bool tensors, means of integers and
    tensors that repeat their memory (expand); ``RuntimeError`` when a rank is lost or the group's timeout is over.
    """
    return AllReduce(tensor.detach(), op, algorithm, group, async_op)


class AllReduce:
    """One all-reduce under way: ``wait()`` returns when it is done; ``bytes_sent`` counts this rank's tensors."""

    def __init__(self, tensor, op, algorithm, group, async_op):
        self._channel = _Channel(group, tensor.device)
        self._call = tensor, op, algorithm
        self._error = self._thread = None
        # A GPU needs its messages queued in one order; the CPU's are waited for, in a thread.
        if async_op and tensor.device.type == "cpu":
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._run()
            self.wait()

    @property
    def bytes_sent(self):
        """The bytes of tensors that this rank has sent so far."""
        return self._channel.bytes_sent

    def wait(self):
        """Wait for the result. Raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    @torch.no_grad()
    def _run(self):
        tensor, op, algorithm = self._call
        channel = self._channel
        try:
            problem = _why_not(tensor, op, algorithm)
            channel.agree(problem or f"{algorithm} {op} of {str(tensor.dtype)[6:]} {list(tensor.shape)}")
            if problem:
                raise UserError(problem)
            # What is sent is memory as it lies: a view that only reads as transposed, conjugated or negated is copied.
            is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
            flat = (tensor if is_plain else tensor.clone(memory_format=torch.contiguous_format)).view(-1)
            ALGORITHMS[algorithm](flat, channel, channel.size if op == "mean" else None)
            if not is_plain:
                tensor.copy_(flat.view(tensor.shape))
        except Exception as error:  # a thread's caller gets it from wait()
            self._error = error


def naive(flat, channel, divisor=None):
    """Send all to rank 0, which adds in the order of ranks, and send the result back, one rank after the other."""
    if channel.rank == 0:
        part = torch.empty_like(flat)
        for peer in range(1, channel.size):
            channel.exchange(receive=part, source=peer)
            flat += part
        _divide(flat, divisor)
        for peer in range(1, channel.size):
            channel.exchange(send=flat, to=peer)
    else:
        channel.exchange(send=flat, to=0)
        channel.exchange(receive=flat, source=0)


def tree(flat, channel, divisor=None):
    """Add up along a binomial tree to rank 0, and send the result down the same tree.

    In the round of distance 1, 2, 4 … each rank that is an odd multiple of the distance hands its sum to
    the rank one distance below, and is done with adding.
    """
    distances = [1 << level for level in range((channel.size - 1).bit_length())]
    part = torch.empty_like(flat)
    for distance in distances:
        if channel.rank % (2 * distance) == distance:
            channel.exchange(send=flat, to=channel.rank - distance)
        elif channel.rank % (2 * distance) == 0 and channel.rank + distance < channel.size:
            channel.exchange(receive=part, source=channel.rank + distance)
            flat += part
    if channel.rank == 0:
        _divide(flat, divisor)
    for distance in reversed(distances):
        if channel.rank % (2 * distance) == 0 and channel.rank + distance < channel.size:
            channel.exchange(send=flat, to=channel.rank + distance)
        elif channel.rank % (2 * distance) == distance:
            channel.exchange(receive=flat, source=channel.rank - distance)


def ring(flat, channel, divisor=None):
    """Send chunks round the ring: n - 1 steps that add (reduce-scatter), n - 1 that hand on (all-gather).

    In each step every rank sends one chunk to the right and receives another from the left. After the
    first half, each rank holds the finished sum of one chunk.
    """
    rank, size = channel.rank, channel.size
    chunks = flat.tensor_split(size)
    right, left = (rank + 1) % size, (rank - 1) % size
    part = torch.empty_like(chunks[0])  # the longest
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arrived = part[: len(incoming)]
        channel.exchange(send=outgoing, to=right, receive=arrived, source=left)
        incoming += arrived
    _divide(chunks[(rank + 1) % size], divisor)
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank - step + 1) % size], chunks[(rank - step) % size]
        channel.exchange(send=outgoing, to=right, receive=incoming, source=left)


ALGORITHMS = {"naive": naive, "tree": tree, "ring": ring}


class _Channel:
    """The messages of one collective: ranks counted within the group, a tag of its own, bytes counted."""

    def __init__(self, group, device):
        self.group = group or dist.group.WORLD
        if self.group not in _tags:
            _tags[self.group] = itertools.count(FIRST_TAG)
        self.tag, self.device = next(_tags[self.group]), device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent = 0

    def exchange(self, *, send=None, to=None, receive=None, source=None):
        """Send one tensor and receive another at the same time, or one of the two; return when both are done."""
        operations = []
        if send is not None and send.numel():
            operations.append(self._message(dist.isend, send, to))
            self.bytes_sent += send.numel() * send.element_size()
        if receive is not None and receive.numel():
            operations.append(self._message(dist.irecv, receive, source))
        self._carry_out(operations)

    def agree(self, header):
        """Raise ``UserError`` on every rank unless all have the same ``header``."""
        own = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
        text = torch.tensor(list(header.encode()[:HEADER_BYTES]), dtype=torch.uint8)
        own[: len(text)] = text
        headers = [
            own.to(self.device) if peer == self.rank else torch.empty_like(own, device=self.device)
            for peer in range(self.size)
        ]
        others = [peer for peer in range(self.size) if peer != self.rank]
        sends = [self._message(dist.isend, headers[self.rank], peer) for peer in others]
        self._carry_out(sends + [self._message(dist.irecv, headers[peer], peer) for peer in others])
        told = [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in headers]
        if len(set(told)) > 1:
            named = ", ".join(f"rank {rank}: {text}" for rank, text in enumerate(told))
            raise UserError(f"the ranks do not agree on what to all-reduce: {named}; give all the same shape and dtype")

    def _message(self, kind, tensor, peer):
        return dist.P2POp(kind, tensor, dist.get_global_rank(self.group, peer), self.group, self.tag)

    def _carry_out(self, operations):
        # One batch, because NCCL would let two ranks that both send first wait for each other.
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()


def _divide(tensor, divisor):
    if divisor is not None:
        tensor /= divisor


def _why_not(tensor, op, algorithm):
    """Return why this cannot be all-reduced, or None."""
    if algorithm not in ALGORITHMS:
        return f"algorithm {algorithm!r} is unknown; choose one of {', '.join(ALGORITHMS)}"
    if op not in ("sum", "mean"):
        return f"op {op!r} is unknown; choose sum or mean"
    if tensor.dtype == torch.bool:
        return "bool values cannot be added: convert the tensor to an integer dtype"
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        return f"the mean of {tensor.dtype} values is no {tensor.dtype}: sum them, and divide as floats"
    if tensor.numel() and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return "the tensor repeats its memory (expand): all-reduce a clone of it"
    return None
