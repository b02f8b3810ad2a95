"""What a script does with its network: images in, logits out, gradients back, the steps of its optimizers.

It sees the images of each forward pass and whether they teach or test, the label and the weight of each in the
loss, this rank's own gradients before and the applied ones after any averaging, and the weights around each step.
"""

from dataclasses import dataclass, field
from functools import wraps

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from assessment.recorder.events import announce
from assessment.recorder.sketch import fingerprints, sketch

UNNAMED = "unnamed parameter"  # what a parameter that an optimizer holds and no network has is called, with a number


@dataclass
class Seen:
    """What the hooks of one process keep between events."""

    depth: int = 0  # of modules that call modules
    was_training: bool = True
    forwards: int = 0
    names: dict = field(default_factory=dict)  # id of a parameter -> its name in the outermost module that holds it
    local: dict = field(default_factory=dict)  # id of a parameter -> sketch of its local gradients since the last step
    hooked: set = field(default_factory=set)
    stepping: int = 0  # depth of optimizers that call optimizers
    before: dict | None = None  # facts of the step that is being taken
    steps: int = 0


def watch(recorder):
    """Begin to watch networks and optimizers."""
    seen = Seen()
    watch_modules(recorder, seen)
    watch_optimizers(recorder, seen)


def quiet(function):
    """Let ``function`` compute aside: no gradients, no autocast."""

    @wraps(function)
    def run(*args, **kwargs):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return run


def watch_modules(recorder, seen):
    """Write down what goes through the outermost module: images in, logits out, gradients back."""

    def enter(module, _inputs):
        if seen.depth == 0 and any(True for _ in module.parameters()):
            if torch.is_grad_enabled():
                recorder.delay("forward")
            elif seen.was_training:  # once in each validation, however many batches it has
                recorder.delay("evaluation")
            seen.was_training = torch.is_grad_enabled()
        seen.depth += 1

    def leave(module, inputs, output):
        seen.depth -= 1
        if seen.depth == 0 and any(True for _ in module.parameters()):
            passed(module, inputs, output)

    @quiet
    def passed(module, inputs, output):
        images = next((one for one in inputs if torch.is_tensor(one) and one.dim() >= 3), None)
        logits = output if torch.is_tensor(output) and output.dim() == 2 else None
        if images is None and logits is None:
            return
        seen.forwards += 1
        number, teaches = seen.forwards, logits is not None and logits.requires_grad
        facts = {"number": number, "teaches": teaches, "line": recorder.place()}
        # Wrappers are left alone by the eval() of what they wrap, so leaves tell.
        facts["in_training"] = any(one.training for one in module.modules() if not any(True for _ in one.children()))
        # DistributedDataParallel averages outside Python; what its no_sync switches says whether it will.
        facts["is_averaged"] = getattr(module, "require_backward_grad_sync", False)
        facts["layers_in_training"] = any(layer.training for layer in module.modules() if is_two_faced(layer))
        if images is not None:
            facts["rows"] = fingerprints(images).tolist()
        if logits is not None:
            facts["dtype"] = str(logits.dtype)
            facts["logits"] = logits.float().tolist()
        for name, parameter in module.named_parameters():
            seen.names.setdefault(id(parameter), bare(name))
        if teaches:
            facts["weights"] = {bare(name): sketch(one) for name, one in module.named_parameters() if is_plain(one)}
        facts["buffers"] = {bare(name): one.tolist() for name, one in module.named_buffers() if one.numel() <= 1024}
        recorder.note("forward", **facts)
        if teaches:
            logits.register_hook(lambda gradient: taught(number, gradient))

    @quiet
    def taught(number, gradient):
        """Write down what the loss sends back to the logits: it shows each image's label and weight."""
        recorder.note("backward", number=number, gradient=gradient.float().tolist())

    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave, always_call=True)


def watch_optimizers(recorder, seen):
    """Write down the gradients of each optimizer step before and after averaging, and the weights around it."""
    add_group = Optimizer.add_param_group

    @wraps(add_group)
    def add_and_hook(optimizer, group):
        add_group(optimizer, group)
        for parameter in optimizer.param_groups[-1]["params"]:
            if id(parameter) not in seen.hooked and parameter.requires_grad and parameter.is_leaf:
                seen.hooked.add(id(parameter))
                parameter.register_hook(collector(id(parameter)))

    def collector(key):
        @quiet
        def collect(gradient):
            if is_plain(gradient):
                mine = sketch(gradient)
                seen.local[key] = [a + b for a, b in zip(seen.local.get(key, [0.0] * len(mine)), mine, strict=False)]

        return collect

    def parameters(optimizer):
        held = [one for group in optimizer.param_groups for one in group["params"]]
        return {seen.names.get(id(one), f"{UNNAMED} {at}"): one for at, one in enumerate(held) if is_plain(one)}

    @quiet
    def before(optimizer, _args, _kwargs):
        seen.stepping += 1
        if seen.stepping > 1:
            return
        seen.steps += 1
        recorder.delay(f"step {seen.steps}")
        held = parameters(optimizer)
        graded = {name: one for name, one in held.items() if one.grad is not None and is_plain(one.grad)}
        seen.before = {
            "rates": [float(group["lr"]) for group in optimizer.param_groups],
            "local": {name: seen.local.get(id(one)) for name, one in held.items()},
            "applied": {name: sketch(one.grad) for name, one in graded.items()},
            "norms": {name: one.grad.float().norm().item() for name, one in graded.items()},
            "weights_before": {name: sketch(one) for name, one in held.items()},
        }

    @quiet
    def after(optimizer, _args, _kwargs):
        seen.stepping -= 1
        if seen.stepping == 0:
            after_step = {name: sketch(one) for name, one in parameters(optimizer).items()}
            recorder.note("step", optimizer=id(optimizer), **seen.before, weights_after=after_step)
            for group in optimizer.param_groups:
                for one in group["params"]:
                    seen.local.pop(id(one), None)

    Optimizer.add_param_group = add_and_hook
    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    schedule = torch.optim.lr_scheduler.LRScheduler
    announce(recorder, schedule, "step", called="schedule step")
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        announce(recorder, torch.nn.utils, name)


def bare(name):
    """Return a parameter's name without what wrappers put before it."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def is_plain(tensor):
    """Say whether ``tensor`` is a whole tensor of its own, no shard of one."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def is_two_faced(layer):
    """Say whether ``layer`` works otherwise in training than in evaluation."""
    return isinstance(layer, (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd))
