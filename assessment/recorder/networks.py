"""What goes through a script's networks: images in, logits out, gradients back.

What a network takes and gives may be a tensor or a collection of some. Logits are what it returns with a row for each
image; where the outermost module returns something else (a loss, a dictionary), the last such tensor within it.
"""

import math
import zlib
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import wraps

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from assessment.recorder.sketch import fingerprints, sketch
from utils.saver import Saver


@dataclass
class Seen:
    """What the hooks of one process keep between events."""

    depth: int = 0  # of modules that call modules
    was_training: bool = True
    is_settling: bool = False  # before a run goes on, in a pass that is none of the script's
    forwards: int = 0
    passes: int = 0  # with gradients, through a network of which no optimizer of torch's knows
    images: torch.Tensor | None = None  # of the pass that is going on ...
    logits: torch.Tensor | None = None  # ... and what has come out so far that may be logits
    names: dict = field(default_factory=dict)  # id of a parameter -> its name in the outermost module that holds it
    local: dict = field(default_factory=dict)  # id of a parameter -> sketch of its local gradients since the last step
    norms: dict = field(default_factory=dict)  # id of a parameter -> the size of each of those gradients
    hooked: set = field(default_factory=set)
    has_stepped: bool = False  # an optimizer of torch's
    stepping: int = 0  # depth of optimizers that call optimizers
    before: dict | None = None  # facts of the step that is being taken
    messages: float = 0  # that had been sent when it began


def quiet(function):
    """Let ``function`` compute aside: no gradients, no autocast."""

    @wraps(function)
    def run(*args, **kwargs):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return run


def watch_networks(recorder, seen):
    """Write down each pass through an outermost module that has parameters."""

    settled = Saver.settled

    @wraps(settled)
    def settle(saver, batches):
        seen.is_settling = True
        try:
            return settled(saver, batches)
        finally:
            seen.is_settling = False

    def enter(module, inputs):
        if is_in_backward() or seen.is_settling:
            return
        if seen.depth == 0 and any(True for _ in module.parameters()):
            if torch.is_grad_enabled():
                recorder.delay("forward")
                count_passes(module)
            seen.images = seen.logits = None
        seen.depth += 1
        if seen.images is None:
            seen.images = next((one for one in tensors(inputs) if one.dim() >= 3), None)

    def count_passes(module):
        """Where no optimizer of torch's holds a weight of ``module``, take each pass for a step."""
        is_known = seen.has_stepped or any(id(one) in seen.hooked for one in module.parameters())
        if recorder.has_fetched and not is_known:
            seen.passes += 1
            recorder.steps = seen.passes - 1
            recorder.delay(f"step {recorder.steps}")

    def leave(module, _inputs, output):
        if is_in_backward() or seen.is_settling:
            return None
        seen.depth -= 1
        if seen.images is not None:
            rows = [one for one in tensors(output) if one.dim() == 2 and len(one) == len(seen.images)]
            seen.logits = rows[0] if rows else seen.logits
        if seen.depth == 0 and any(True for _ in module.parameters()):
            passed(module, output)
            seen.images = seen.logits = None
            if seen.was_training and not torch.is_grad_enabled():
                recorder.delay("evaluation")  # once in each validation, however many batches it has
            seen.was_training = torch.is_grad_enabled()
            if torch.is_tensor(output) and torch.is_grad_enabled() and recorder.is_spoilt():
                return output * math.nan
        return None

    @quiet
    def passed(module, output):
        images, logits = seen.images, seen.logits
        if images is None and logits is None:
            logits = next((one for one in tensors(output) if one.dim() == 2), None)
        if images is None and logits is None:
            return
        seen.forwards += 1
        number, results = seen.forwards, tensors([output, logits])
        is_transformed = any(map(is_wrapped, results))  # by torch.func, where nothing comes back through hooks
        teaches = is_transformed or any(one.requires_grad for one in results)
        for name, parameter in module.named_parameters():
            seen.names.setdefault(id(parameter), bare(name))
        with temporarily_clear_interpreter_stack() if is_transformed else nullcontext():
            facts = {"number": number, "teaches": teaches, "is_transformed": is_transformed, "line": recorder.place()}
            recorder.note("forward", **facts, **facts_of(module, unwrapped(images), unwrapped(logits)))
        if teaches and not is_transformed:
            has_logits = logits is not None and logits.requires_grad
            watched = logits if has_logits else next(one for one in results if one.requires_grad)
            watched.register_hook(lambda gradient: taught(number, gradient if has_logits else None))

    @quiet
    def taught(number, gradient):
        """Write down what the loss sends back to the logits: it shows each image's label and weight."""
        recorder.note("backward", number=number, gradient=None if gradient is None else gradient.float().tolist())

    Saver.settled = settle
    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave, always_call=True)


def is_in_backward():
    """Say whether gradients are on their way back, where checkpointing computes parts of a pass once more."""
    return torch._C._current_graph_task_id() != -1


def facts_of(module, images, logits):
    """Return what is written down of a pass of ``images`` through ``module``."""
    faces = [layer.training for layer in module.modules() if is_two_faced(layer)]
    # Wrappers are left alone by the eval() of what they wrap, so leaves tell.
    leaves = [one.training for one in module.modules() if not any(True for _ in one.children())]
    facts = {"in_training": all(faces) if faces else any(leaves), "layers_in_training": any(faces)}
    # DistributedDataParallel averages outside Python; what its no_sync switches says whether it will.
    facts["is_averaged"] = getattr(module, "require_backward_grad_sync", False)
    if images is not None:
        facts["rows"] = fingerprints(images).tolist()
        facts["pixels"] = [images.min().item(), images.max().item()] if images.numel() else []
    if logits is not None:
        facts |= {"dtype": str(logits.dtype), "logits": logits.float().tolist()}
    facts["generator"] = zlib.crc32(torch.get_rng_state().numpy())
    facts["parameters"] = [id(one) for one in module.parameters()]
    facts["weights"] = {bare(name): sketch(one) for name, one in module.named_parameters() if is_plain(one)}
    small = {bare(name): one for name, one in module.named_buffers() if one.numel() <= 1024}
    return facts | {"buffers": {name: one.tolist() for name, one in small.items() if not is_wrapped(one)}}


def tensors(value):
    """Return the tensors in ``value``: one, or a collection of some."""
    if torch.is_tensor(value):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [one for part in parts for one in tensors(part)]


def is_wrapped(tensor):
    """Say whether ``tensor`` stands for another, within a transformation of ``torch.func``."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def unwrapped(tensor):
    """Return the tensor that ``tensor``, or None, stands for."""
    while tensor is not None and is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def bare(name):
    """Return a parameter's name without what wrappers put before it."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def is_plain(tensor):
    """Say whether ``tensor`` is a whole tensor of its own, no shard of one, and stands for no other."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_wrapped(tensor)


def is_two_faced(layer):
    """Say whether ``layer`` works otherwise in training than in evaluation."""
    return isinstance(layer, (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd))
