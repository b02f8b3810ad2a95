"""Change whole batches of images at once, on the device that holds them.

Every function here takes a batch and returns a batch: a per-image loop would cost more than the
training step. Randomness comes from a ``torch.Generator`` that the caller owns, because on several
ranks the seeds must differ (each rank draws for its own images).
"""

import math

import torch
import torch.nn.functional as F

AUGMENTATIONS = ("none", "affine")


def uniform(low, high, count, generator):
    """Draw ``count`` float32 numbers evenly from [low, high), on the generator's device."""
    span = torch.rand(count, generator=generator, device=generator.device)
    return low + (high - low) * span


def warp(images, angle, shear, scale, shift, size=None):
    """Turn, shear, scale and shift each image by its own amounts, in one sampling call.

    ``images`` is float [N, C, H, W]; ``angle`` and ``shear`` [N] are in degrees, ``scale`` [N] is a
    factor (above 1 enlarges), ``shift`` [N, 2] is in fractions of the picture's width and height.
    ``size`` (H', W') of the result defaults to (H, W). What comes in from outside the picture is 0.
    """
    turn, slant = angle * math.pi / 180, torch.tan(shear * math.pi / 180)
    cos, sin = torch.cos(turn) / scale, torch.sin(turn) / scale
    # grid_sample asks for each output pixel where to read, so these are the inverse maps.
    first_row = torch.stack([cos, cos * slant - sin, -2 * shift[:, 0]], dim=1)
    second_row = torch.stack([sin, sin * slant + cos, -2 * shift[:, 1]], dim=1)
    matrices = torch.stack([first_row, second_row], dim=1)
    height, width = size or images.shape[-2:]
    grid = F.affine_grid(matrices, (len(images), 1, height, width), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", align_corners=False)


def augment(images, kind, generator):
    """Return a changed copy of the batch ``images`` (uint8 [N, C, H, W]); ``none`` returns it as it is.

    ``affine`` turns by up to 10 degrees, shears by up to 10, scales by 0.8 to 1.2 and shifts by up to
    a twelfth of the picture. Raises ``ValueError`` for another ``kind``.
    """
    if kind == "none":
        return images
    if kind != "affine":
        raise ValueError(f"augmentation {kind!r} is unknown; choose one of {', '.join(AUGMENTATIONS)}")
    count = len(images)
    shift = uniform(-1 / 12, 1 / 12, 2 * count, generator).view(count, 2)
    changed = warp(
        images.float(),
        angle=uniform(-10, 10, count, generator),
        shear=uniform(-10, 10, count, generator),
        scale=uniform(0.8, 1.2, count, generator),
        shift=shift,
    )
    return changed.round_().clamp_(0, 255).to(torch.uint8)
