"""Change whole batches of images at once, on the device that holds them.

Every function here takes a batch and returns a batch: a per-image loop would cost more than the
training step. Randomness comes from a ``torch.Generator`` that the caller owns, because on several
ranks the seeds must differ (each rank draws for its own images).
"""

import math

import torch
import torch.nn.functional as F

from utils.errors import UserError

AUGMENTATIONS = ("none", "affine", "colour")
GREY = (0.299, 0.587, 0.114)  # how bright red, green and blue look (ITU-R BT.601)


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


def jitter(images, brightness, contrast, saturation):
    """Change brightness, then contrast, then saturation of each image by its own factors [N].

    ``images`` is float [N, 3, H, W]. Contrast moves pixels away from the image's mean grey, saturation away from
    the pixel's own grey; a factor of 1 changes nothing. As torchvision's ColorJitter does, in a fixed order.
    """
    weights = torch.tensor(GREY, device=images.device).view(1, 3, 1, 1)
    brightness, contrast, saturation = (one.view(-1, 1, 1, 1) for one in (brightness, contrast, saturation))
    images = images * brightness
    mean = (images * weights).sum(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True)
    images = mean + (images - mean) * contrast
    grey = (images * weights).sum(dim=1, keepdim=True)
    return grey + (images - grey) * saturation


def augment(images, kind, generator):
    """Return a changed copy of the batch ``images`` (uint8 [N, C, H, W]); ``none`` returns it as it is.

    ``affine`` turns by up to 10 degrees, shears by up to 10, scales by 0.8 to 1.2 and shifts by up to
    a twelfth of the picture. ``colour`` does so without the shift, mirrors every other image, and changes
    brightness, contrast and saturation by up to a fifth. Raises ``ValueError`` for another ``kind``, ``UserError``
    for ``colour`` where images have no three channels.
    """
    if kind == "none":
        return images
    if kind not in AUGMENTATIONS:
        raise ValueError(f"augmentation {kind!r} is unknown; choose one of {', '.join(AUGMENTATIONS)}")
    if kind == "colour" and images.shape[1] != 3:
        raise UserError(
            f"--augment colour is for images of three channels, these have {images.shape[1]}: choose another"
        )
    count = len(images)
    reach = 1 / 12 if kind == "affine" else 0.0
    shift = uniform(-reach, reach, 2 * count, generator).view(count, 2)
    changed = warp(
        images.float(),
        angle=uniform(-10, 10, count, generator),
        shear=uniform(-10, 10, count, generator),
        scale=uniform(0.8, 1.2, count, generator),
        shift=shift,
    )
    if kind == "colour":
        mirrored = uniform(0, 1, count, generator).view(-1, 1, 1, 1) < 0.5
        changed = torch.where(mirrored, changed.flip(3), changed)
        changed = jitter(changed, *(uniform(0.8, 1.2, count, generator) for _ in range(3)))
    return changed.round_().clamp_(0, 255).to(torch.uint8)
