"""Data parallelism from scratch: every rank computes the gradient of its share, all step with the mean.

    parallel = DataParallel(model)
    loss = F.cross_entropy(parallel(images), labels)
    loss.backward()                       # on return, .grad is the mean over all ranks
    optimizer.step()

``NaiveDataParallel`` says in a few lines what has to happen. ``DataParallel`` does it while backward still
runs, as PyTorch's DistributedDataParallel does (Li et al. 2020, "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training").
"""

import math
from contextlib import contextmanager
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_map_only

from utils.errors import UserError
from utils.parallel.buckets import Bucket

# A small bucket is full early; a large one uses the network better, and models are larger where GPUs are.
BUCKET_BYTES = {"cpu": 1 << 20, "cuda": 25 << 20}


class NaiveDataParallel(nn.Module):
    """Average each gradient over the ranks, one after the other, once backward is over.

    Call ``average_gradients()`` between ``backward()`` and the optimizer's step. While the ranks
    communicate nothing is computed, and each parameter pays the latency of an all-reduce of its own.
    """

    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def average_gradients(self):
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


class DataParallel(nn.Module):
    """Average the gradients of ``module`` over the ranks while backward computes them.

    At construction rank 0's parameters and buffers go to all ranks. Gradients are views into flat buckets
    of about ``bucket_bytes``, filled in the order in which backward produces them (learned in the first
    step); a full bucket's all-reduce starts at once. When ``backward()`` returns, all are averaged. A
    parameter without a gradient counts as zero; where no rank has one, its ``.grad`` stays None.

    ``shares`` are the images that each rank's loss is the mean of, a number a rank (default: the same for
    all). A rank's loss counts with the factor own share / total, so that the gradients are those of the
    mean over all images. They may be set anew between steps, to the same numbers on all ranks.
    ``all_reduce`` adds a tensor up over the ranks: ``dist.all_reduce`` or ``collectives.all_reduce``.

    Which parameters are frozen must not change afterwards, nor may the module be moved or wrapped again, and
    backward must not run inside backward (reentrant checkpointing). Raises ``UserError`` where the ranks'
    modules or shares differ, and where one of these is noticed.
    """

    def __init__(self, module, *, shares=None, bucket_bytes=None, group=None, all_reduce=dist.all_reduce):
        super().__init__()
        self.module, self.group, self._all_reduce = module, group, all_reduce
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        shares = [1] * self.world_size if shares is None else list(shares)
        self._refuse_differences(shares)
        self.shares = shares
        for tensor in [*module.parameters(), *module.buffers()]:
            packed = tensor.detach().contiguous()  # memory is sent as it lies, and may lie differently on another rank
            dist.broadcast(packed, group=group, group_src=0)
            tensor.detach().copy_(packed)

        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        device = self._trained[0].device.type if self._trained else "cpu"
        self._bucket_bytes = bucket_bytes or BUCKET_BYTES.get(device, BUCKET_BYTES["cuda"])
        self._is_averaging, self._knows_order, self._backward = True, False, None
        self._nodes = [get_gradient_edge(parameter).node for parameter in self._trained]  # hooks live with their node
        for number, (parameter, node) in enumerate(zip(self._trained, self._nodes, strict=True)):
            node.register_prehook(_weakly(self._before_gradient, number))
            parameter.register_post_accumulate_grad_hook(_weakly(self._after_gradient, number))
        # Backward begins at the end of the network: the best guess until a step has shown the order.
        self._fill_buckets(list(reversed(range(len(self._trained)))))

    def forward(self, *args, **kwargs):
        outputs = self.module(*args, **kwargs)
        if self._weight == 1:
            return outputs
        # Gradients are weighed where they enter the network: layers in it may mix those of all ranks (SyncBatchNorm).
        return tree_map_only(torch.Tensor, lambda output: _Weighed.apply(output, self._weight), outputs)

    @property
    def shares(self):
        """How many images each rank's loss is the mean of, a number a rank."""
        return self._shares

    @shares.setter
    def shares(self, shares):
        shares = tuple(float(share) for share in shares)
        if len(shares) != self.world_size or min(shares) < 0 or not 0 < sum(shares) < math.inf:
            raise UserError(
                f"shares={list(shares)}: give one number a rank ({self.world_size}), none negative, not all 0"
            )
        self._shares, self._weight = shares, shares[self.rank] / (sum(shares) / self.world_size)

    @contextmanager
    def no_sync(self):
        """Let ``backward()`` add to the gradients of this rank alone, to be averaged by the next one outside."""
        before, self._is_averaging = self._is_averaging, False
        try:
            yield
        finally:
            self._is_averaging = before

    @torch.no_grad()
    def average_gradients(self):
        """Average what is not averaged yet and wait for all of it. ``backward()`` calls it at its end.

        Call it yourself in a step in which this rank has no images, and so no backward. (A network with
        SyncBatchNorm has to run on an empty batch instead, because its layers wait for each other, too.)
        """
        for bucket in self._buckets[self._started :]:
            self._start(bucket)
        for bucket in self._buckets:
            bucket.wait()
            bucket.hand_out(self._trained)
        if not self._knows_order:
            self._learn_order()
        self._begin()

    def state_dict(self, *args, **kwargs):
        """Return the state of the bare module: no prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """Load the state of a bare module."""
        return self.module.load_state_dict(*args, **kwargs)

    def __reduce__(self):
        raise UserError("a wrapper belongs to its process group: copy or save its .module, the bare network")

    def _begin(self):
        self._started, self._order = 0, []
        for bucket in self._buckets:
            bucket.wait()  # only a backward that failed leaves work behind
            bucket.missing = set(bucket.views)

    def _before_gradient(self, number, incoming):
        """Let autograd add the incoming gradient into the bucket."""
        if torch.is_grad_enabled():
            raise UserError("gradients in buckets have no graph: call backward without create_graph")
        backward = torch._C._current_graph_task_id()
        if self._is_averaging and backward != self._backward:
            self._backward = backward
            self._begin()
            Variable._execution_engine.queue_callback(self.average_gradients)  # at the end of this backward
        if incoming[0] is not None:
            self._bucket_of[number].take_in(number, self._trained[number])

    def _after_gradient(self, number, _parameter):
        """Start every bucket that is full; in the order of buckets, which is the same on all ranks."""
        if not self._is_averaging:
            return
        self._order.append(number)
        self._bucket_of[number].missing.discard(number)
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start(self._buckets[self._started])

    def _start(self, bucket):
        bucket.prepare(self._trained)
        bucket.flat /= self.world_size
        bucket.work = self._all_reduce(bucket.flat, group=self.group, async_op=True)
        self._started += 1

    def _learn_order(self):
        """Fill the buckets anew in the order of rank 0's first backward, for all ranks must fill them alike."""
        guess = [number for bucket in self._buckets for number in bucket.views]
        order = self._order + [number for number in guess if number not in self._order]
        if order:
            shared = torch.tensor(order, device=self._buckets[0].flat.device)
            dist.broadcast(shared, group=self.group, group_src=0)
            self._fill_buckets(shared.tolist())
        self._knows_order = True

    def _fill_buckets(self, order):
        """Deal the parameters out to buckets of one dtype and device each, and move their gradients there."""
        self._buckets, open_buckets = [], {}
        for number in order:
            parameter = self._trained[number]
            kind = parameter.dtype, parameter.device
            numbers = open_buckets.setdefault(kind, [])
            numbers.append(number)
            if sum(self._trained[one].nbytes for one in numbers) >= self._bucket_bytes:
                self._buckets.append(Bucket(open_buckets.pop(kind), self._trained))
        self._buckets += [Bucket(numbers, self._trained) for numbers in open_buckets.values()]
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.views}
        for number, parameter in enumerate(self._trained):
            if parameter.grad is not None:
                self._bucket_of[number].take_in(number, parameter)
        self._begin()

    def _refuse_differences(self, shares):
        """Raise ``UserError`` on every rank where one was given another network or other shares than rank 0."""
        own = {"shares": str(shares)}
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            own[name] = f"{str(tensor.dtype)[6:]} {list(tensor.shape)}{'' if tensor.requires_grad else ' frozen'}"
        told = [None] * self.world_size
        dist.all_gather_object(told, own, group=self.group)
        for rank, other in enumerate(told):
            for name in told[0] | other:
                there, here = told[0].get(name, "missing"), other.get(name, "missing")
                if there != here:
                    raise UserError(
                        f"the ranks' networks differ: {name} is {there} on rank 0 and {here} on rank {rank};"
                        " build the same network with the same shares on all"
                    )


class _Weighed(torch.autograd.Function):
    """The tensor itself; its gradient is multiplied by ``weight``."""

    @staticmethod
    def forward(ctx, tensor, weight):
        ctx.weight = weight
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.weight, None


def _weakly(method, number):
    """Return a hook that calls ``method(number, …)`` as long as its object lives: hooks stay with the parameters."""
    reference = WeakMethod(method)

    def hook(*args):
        bound = reference()
        return None if bound is None else bound(number, *args)

    return hook
