"""Short linear summaries of tensors, so that what two ranks computed can be compared without sending it.

A sketch of a tensor is its product with a few fixed random directions. Sketching is linear, so
``sketch(mean of gradients) = mean of sketches``, whoever took the mean and how (random projections:
Johnson and Lindenstrauss 1984). Nothing here draws from torch's own random numbers.
"""

from functools import cache

import torch

DIRECTIONS = 4


@cache
def directions(numel):
    """Return the fixed random directions for tensors of ``numel`` elements: float32 [DIRECTIONS, numel]."""
    return torch.randn(DIRECTIONS, numel, generator=torch.Generator().manual_seed(numel))


def sketch(tensor):
    """Return the sketch of ``tensor`` as a list of ``DIRECTIONS`` numbers."""
    flat = tensor.detach().reshape(-1).to("cpu", torch.float32)
    return (directions(flat.numel()) @ flat).tolist()


def fingerprints(images):
    """Return what tells the images of a batch apart: float32 [N, DIRECTIONS].

    The same for a picture as bytes, divided by 255 or normalised: brightness and contrast are taken out
    before it is sketched.
    """
    flat = images.detach().reshape(len(images), -1).to("cpu", torch.float32)
    flat = flat - flat.mean(dim=1, keepdim=True)
    flat = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return flat @ directions(flat.shape[1]).T
