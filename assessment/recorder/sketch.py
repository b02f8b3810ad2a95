"""Short linear summaries of tensors, so that what two ranks computed can be compared without sending it.

A sketch of a tensor is its product with a few fixed random directions. Sketching is linear, so
``sketch(mean of gradients) = mean of sketches``, whoever took the mean and how (random projections:
Johnson and Lindenstrauss 1984). Nothing here draws from torch's own random numbers.
"""

import math
from functools import lru_cache

import torch

DIRECTIONS = 4
UNNAMED = "unnamed parameter"  # what a parameter that an optimizer holds and no network has is called, with a number
KEPT = 4_000_000  # numbers in the largest tensor whose directions are kept
randn = torch.randn  # as it is: what a script draws may be settled


def directions(numel):
    """Return the fixed random directions for tensors of ``numel`` elements: float32 [DIRECTIONS, numel]."""
    return _kept(numel) if numel <= KEPT else _drawn(numel)


def _drawn(numel):
    return randn(DIRECTIONS, numel, generator=torch.Generator().manual_seed(numel))


_kept = lru_cache(maxsize=None)(_drawn)


def sketch(tensor):
    """Return the sketch of ``tensor`` as a list of ``DIRECTIONS`` numbers."""
    flat = tensor.detach().reshape(-1).to("cpu", torch.float32)
    return (directions(flat.numel()) @ flat).tolist()


def fingerprints(images):
    """Return what tells the images of a batch apart: float32 [N, DIRECTIONS].

    The same for a picture as bytes, divided by 255 or normalised, each channel by numbers of its own too: brightness
    and contrast of every channel are taken out before it is sketched.
    """
    channels = images.shape[1] if images.dim() == 4 else 1
    flat = images.detach().reshape(len(images), channels, -1).to("cpu", torch.float32)
    flat = flat - flat.mean(dim=2, keepdim=True)
    flat = flat / flat.norm(dim=2, keepdim=True).clamp_min(1e-12) / math.sqrt(channels)
    flat = flat.reshape(len(images), -1)
    return flat @ directions(flat.shape[1]).T


def distance(ours, theirs):
    """Return how far the tensors sketched in ``ours`` are from those of the same names in ``theirs``.

    It is relative to the size of all of them, and estimated from the sketches within about a tenth.
    """
    pairs = [pair for name in theirs for pair in zip(ours[name], theirs[name], strict=True)]
    apart, size = math.hypot(*(a - b for a, b in pairs)), math.hypot(*(b for _, b in pairs))
    return apart / size if size else apart
