"""What a script does to train: the steps of its optimizers, with the gradients before and after any averaging.

It sees this rank's own gradients before and the applied ones after any averaging, the rate, and the weights around
each step.
"""

import math
from functools import wraps

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from assessment.recorder.events import announce
from assessment.recorder.networks import Seen, is_plain, quiet, watch_networks
from assessment.recorder.sketch import UNNAMED, sketch


def watch(recorder):
    """Begin to watch networks and optimizers."""
    seen = Seen()
    watch_networks(recorder, seen)
    watch_optimizers(recorder, seen)


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
                seen.norms.setdefault(key, []).append(gradient.float().norm().item())
                seen.local[key] = [a + b for a, b in zip(seen.local.get(key, [0.0] * len(mine)), mine, strict=False)]

        return collect

    def parameters(optimizer):
        held = [one for group in optimizer.param_groups for one in group["params"]]
        return {seen.names.get(id(one), f"{UNNAMED} {at}"): one for at, one in enumerate(held) if is_plain(one)}

    def own_norm(held):
        """Return the size of this rank's own gradient, None where it is the sum of several passes."""
        sizes = [seen.norms.get(id(one), []) for one in held.values()]
        is_single = any(sizes) and all(len(one) < 2 for one in sizes)
        return math.hypot(*(size for one in sizes for size in one)) if is_single else None

    def applied(held):
        graded = {name: one for name, one in held.items() if one.grad is not None and is_plain(one.grad)}
        return {
            "applied": {name: sketch(one.grad) for name, one in graded.items()},
            "norms": {name: one.grad.float().norm().item() for name, one in graded.items()},
        }

    def take_averaged(optimizer):
        """Where gradients were sent round within the step, take those that are there by now: they are applied."""
        if recorder.messages > seen.messages:
            seen.messages = math.inf  # once: what comes later is no gradient any more
            for name, found in applied(parameters(optimizer)).items():
                seen.before[name] |= found

    @quiet
    def before(optimizer, _args, _kwargs):
        seen.stepping += 1
        if seen.stepping > 1:
            take_averaged(optimizer)
            return
        seen.has_stepped = True
        recorder.steps += 1
        recorder.delay(f"step {recorder.steps}")
        held = parameters(optimizer)
        seen.messages = recorder.messages
        seen.before = {
            "rates": [float(group["lr"]) for group in optimizer.param_groups],
            "local": {name: seen.local.get(id(one)) for name, one in held.items()},
            **applied(held),
            "own_norm": own_norm(held),
            "weights_before": {name: sketch(one) for name, one in held.items()},
            "parameters": [id(one) for group in optimizer.param_groups for one in group["params"]],
        }

    @quiet
    def after(optimizer, _args, _kwargs):
        seen.stepping -= 1
        if seen.stepping == 0:
            take_averaged(optimizer)
            after_step = {name: sketch(one) for name, one in parameters(optimizer).items()}
            recorder.note("step", optimizer=id(optimizer), **seen.before, weights_after=after_step)
            for group in optimizer.param_groups:
                for one in group["params"]:
                    seen.local.pop(id(one), None)
                    seen.norms.pop(id(one), None)

    @quiet
    def before_all(optimizer, _args, _kwargs):
        # A hook of the script's own may average gradients or clip them: it comes first, wherever it was registered.
        if id(optimizer) in last:
            last.pop(id(optimizer)).remove()
        last[id(optimizer)] = optimizer.register_step_pre_hook(before)

    last = {}  # id of an optimizer -> the hook that is called after all others
    Optimizer.add_param_group = add_and_hook
    register_optimizer_step_pre_hook(before_all)
    register_optimizer_step_post_hook(after)
    schedule = torch.optim.lr_scheduler.LRScheduler
    announce(recorder, schedule, "step", called="schedule step")
    announce(recorder, torch.optim.lr_scheduler.ReduceLROnPlateau, "step", watched_number, called="plateau")
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        announce(recorder, torch.nn.utils, name)
    for owner in (Optimizer, torch.nn.Module):
        announce(recorder, owner, "zero_grad", event="zeroed")


def watched_number(_schedule, metrics=None, *_args, **_kwargs):
    """Return the number by which a schedule decides whether training has come to a plateau."""
    return {"metrics": None if metrics is None else float(metrics)}
