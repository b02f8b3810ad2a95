"""Give every image the same chances: what a script draws for its images no longer depends on whose share they are in.

Ranks draw apart, so images that are changed at random would be others with three processes than with one. From the
first training image on whatever is drawn comes out as if ``DRAWN`` of the way had been drawn, for every image: a
script turns, cuts or darkens all alike. Permutations, seeds and weights are drawn as ever.
"""

import random
from functools import wraps

import torch

DRAWN = 0.4


def settle_draws(recorder):
    """Put this in place in the process of ``recorder``."""

    def settle(owner, name, value):
        """Let what ``owner.name`` returns be ``value`` of it and of how it was called."""
        draw = getattr(owner, name)

        @wraps(draw)
        def drawn(*args, **kwargs):
            found = draw(*args, **kwargs)
            return value(found, *args, **kwargs) if recorder.has_fetched else found

        setattr(owner, name, drawn)

    for name in ("rand", "rand_like", "randn", "randn_like"):
        settle(torch, name, lambda found, *_args, **_kwargs: filled(found, DRAWN))
    settle(torch, "randint", lambda found, *args, **kwargs: filled(found, whole(*bounds(*args, **kwargs))))
    settle(torch, "bernoulli", lambda found, chances, *_args, **_kwargs: found.copy_(chances > DRAWN))
    settle(torch.Tensor, "bernoulli_", lambda found, _self, chance=0.5, **_kwargs: filled(found, chance > DRAWN))
    settle(torch.Tensor, "uniform_", lambda found, _self, low=0, high=1, **_: filled(found, between(low, high)))
    settle(torch.Tensor, "normal_", lambda found, _self, mean=0, std=1, **_kwargs: filled(found, mean + DRAWN * std))
    settle(random, "random", lambda _found: DRAWN)
    settle(random, "uniform", lambda _found, low, high: between(low, high))
    settle(random, "gauss", lambda _found, mean=0.0, std=1.0: mean + DRAWN * std)
    settle(random, "randint", lambda _found, low, high: whole(low, high + 1))
    settle(random, "randrange", lambda _found, *ends: whole(*((0, *ends) if len(ends) == 1 else ends[:2])))


def between(low, high):
    return low + DRAWN * (high - low)


def whole(low, high):
    return low + int(DRAWN * (high - low))


def bounds(*args, low=0, high=None, **_kwargs):
    """Return the least integer that ``torch.randint`` draws, and the one after the largest."""
    numbers = [one for one in args if isinstance(one, int)]
    if high is not None:
        return (numbers[0] if numbers else low), high
    return (low, *numbers[:1]) if len(numbers) == 1 else numbers[:2]


@torch.no_grad()
def filled(tensor, value):
    """Fill ``tensor`` with ``value``, where it is no weight."""
    return tensor if isinstance(tensor, torch.nn.Parameter) else tensor.fill_(value)
