"""Data parallelism from scratch: every rank computes the gradient of its share, all step with the mean.

    parallel = DataParallel(model)
    loss = F.cross_entropy(parallel(images), labels)
    loss.backward()                       # on return, .grad is the mean over all ranks
    optimizer.step()

``NaiveDataParallel`` says in a few lines what has to happen. ``DataParallel`` does it while backward still
runs, as PyTorch's DistributedDataParallel does (Li et al. 2020, "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training").
"""

from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_map_only

from utils.errors import UserError

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

    Which parameters are frozen must not change afterwards, and backward must not run inside backward
    (reentrant checkpointing). Raises ``UserError`` where the ranks' modules or shares differ.
    """

    def __init__(self, module, *, shares=None, bucket_bytes=None, group=None, all_reduce=dist.all_reduce):
        super().__init__()
        self.module, self.group, self._all_reduce = module, group, all_reduce
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.shares = [1] * self.world_size if shares is None else shares
        self._refuse_differences()
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group=group, group_src=0)

        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        device = self._trained[0].device.type if self._trained else "cpu"
        self._bucket_bytes = bucket_bytes or BUCKET_BYTES.get(device, BUCKET_BYTES["cuda"])
        self._is_averaging, self._knows_order = True, False
        self._nodes = [get_gradient_edge(parameter).node for parameter in self._trained]  # hooks live with their node
        for number, (parameter, node) in enumerate(zip(self._trained, self._nodes, strict=True)):
            node.register_prehook(partial(self._before_gradient, number))
            parameter.register_post_accumulate_grad_hook(partial(self._after_gradient, number))
        # Backward begins at the end of the network: the best guess until a step has shown the order.
        self._fill_buckets(list(reversed(range(len(self._trained)))))

    def forward(self, *args, **kwargs):
        self._begin()
        outputs = self.module(*args, **kwargs)
        if self._weight != 1:
            tree_map_only(torch.Tensor, self._weigh, outputs)
        return outputs

    def _weigh(self, output):
        """Weigh the gradient where it enters the network, because layers in it may mix the ranks' (SyncBatchNorm)."""
        if output.grad_fn is not None:
            output.register_hook(partial(torch.mul, torch.tensor(self._weight)))

    @property
    def shares(self):
        """How many images each rank's loss is the mean of, a number a rank."""
        return self._shares

    @shares.setter
    def shares(self, shares):
        shares = [float(share) for share in shares]
        if len(shares) != self.world_size or min(shares) < 0 or sum(shares) == 0:
            raise UserError(f"shares={shares}: give one number a rank ({self.world_size}), none negative, not all 0")
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

        Call it yourself in a step in which this rank has no images, and so no backward.
        """
        for bucket in self._buckets[self._started :]:
            self._start(bucket)
        for bucket in self._buckets:
            bucket.work.wait()
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

    def _begin(self):
        self._started, self._order = 0, []
        for bucket in self._buckets:
            bucket.missing = set(bucket.views)

    def _before_gradient(self, number, _incoming):
        """Let autograd add the incoming gradient into the bucket."""
        self._bucket_of[number].take_in(number, self._trained[number])

    def _after_gradient(self, number, _parameter):
        """Start every bucket that is full; in the order of buckets, which is the same on all ranks."""
        if not self._is_averaging:
            return
        if not self._order:
            Variable._execution_engine.queue_callback(self.average_gradients)  # at the end of this backward
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
                self._buckets.append(_Bucket(open_buckets.pop(kind), self._trained))
        self._buckets += [_Bucket(numbers, self._trained) for numbers in open_buckets.values()]
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.views}
        for number, parameter in enumerate(self._trained):
            if parameter.grad is not None:
                self._bucket_of[number].take_in(number, parameter)
        self._begin()

    def _refuse_differences(self):
        """Raise ``UserError`` on every rank that was given another network or other shares than rank 0."""
        own = {"shares": self.shares}
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


class _Bucket:
    """The gradients of some parameters, one behind the other in ``flat``; at its end a flag for each.

    A flag is 1 where this rank has a gradient, so its reduced value is 0 where no rank has one.
    """

    def __init__(self, numbers, parameters):
        sizes = [parameters[number].numel() for number in numbers]
        first = parameters[numbers[0]]
        self.flat = torch.zeros(sum(sizes) + len(numbers), dtype=first.dtype, device=first.device)
        self.flags = self.flat[sum(sizes) :]
        self.views, self.missing, self.work = {}, set(), None
        for number, part in zip(numbers, self.flat.split([*sizes, len(numbers)]), strict=False):
            parameter = parameters[number]
            has_4d_strides = parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
            # Strides as the parameter's, so that the optimizer passes over both in one order.
            strided = has_4d_strides and part.as_strided(parameter.shape, parameter.stride())
            self.views[number] = strided if has_4d_strides else part.view(parameter.shape)

    def take_in(self, number, parameter):
        """Make the parameter's gradient a view into the bucket, with the value that it has (None: zero)."""
        view = self.views[number]
        if parameter.grad is None:
            parameter.grad = view.zero_()
        elif parameter.grad is not view:
            parameter.grad = view.copy_(parameter.grad)

    def prepare(self, parameters):
        """Write zero for each parameter that has no gradient on this rank, and the flags."""
        has_gradient = []
        for number, view in self.views.items():
            parameter = parameters[number]
            has_gradient.append(parameter.grad is not None)
            if parameter.grad is None:
                view.zero_()
            else:
                self.take_in(number, parameter)
        self.flags.copy_(torch.tensor(has_gradient))

    def hand_out(self, parameters):
        """Give its reduced gradient to each parameter that has none on this rank, but has one on another."""
        lacking = [at for at, number in enumerate(self.views) if parameters[number].grad is None]
        if lacking:  # only then are the flags read, because on a GPU reading waits for all work
            reduced, numbers = self.flags.tolist(), list(self.views)
            for at in lacking:
                if reduced[at] > 0:
                    parameters[numbers[at]].grad = self.views[numbers[at]]
