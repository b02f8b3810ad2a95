"""A bucket: the gradients of some parameters in one flat tensor, which one all-reduce adds up over the ranks."""

import torch

from utils.errors import UserError


class Bucket:
    """The gradients of some parameters, one behind the other in ``flat``; at its end a flag for each.

    A flag is 1 where this rank has a gradient, so its reduced value is 0 where no rank has one.
    """

    def __init__(self, numbers, parameters):
        sizes = [parameters[number].numel() for number in numbers]
        first = parameters[numbers[0]]
        self.flat = torch.zeros(sum(sizes) + len(numbers), dtype=first.dtype, device=first.device)
        self.flags = self.flat[sum(sizes) :]
        self.views, self.addresses, self.missing, self.work = {}, {}, set(), None
        for number, part in zip(numbers, self.flat.split([*sizes, len(numbers)]), strict=False):
            parameter = parameters[number]
            has_4d_strides = parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
            # Strides as the parameter's, so that the optimizer passes over both in one order.
            strided = has_4d_strides and part.as_strided(parameter.shape, parameter.stride())
            self.views[number] = strided if has_4d_strides else part.view(parameter.shape)
            self.addresses[number] = part.data_ptr()

    def take_in(self, number, parameter):
        """Make the parameter's gradient a view into the bucket, with the value that it has (None: zero)."""
        view = self.views[number]
        is_moved = view.data_ptr() != self.addresses[number] or parameter.device != view.device
        if is_moved or parameter.dtype != view.dtype:
            raise UserError("the network was moved or converted after it was wrapped: do that before")
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
        if all(has_gradient):
            self.flags.fill_(1)
        else:
            self.flags.copy_(torch.tensor(has_gradient))

    def wait(self):
        """Wait for the all-reduce under way, if there is one."""
        if self.work is not None:
            self.work.wait()
            self.work = None

    def hand_out(self, parameters):
        """Give its reduced gradient to each parameter that has none on this rank, but has one on another."""
        lacking = [at for at, number in enumerate(self.views) if parameters[number].grad is None]
        if lacking:  # only then are the flags read, because on a GPU reading waits for all work
            reduced, numbers = self.flags.tolist(), list(self.views)
            for at in lacking:
                if reduced[at] != 0:
                    parameters[numbers[at]].grad = self.views[numbers[at]]
