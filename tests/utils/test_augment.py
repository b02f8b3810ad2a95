"""Whole batches change as torchvision changes single images, within the stated bounds."""

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from utils.data.augment import AUGMENTATIONS, augment, jitter, uniform, warp
from utils.errors import UserError


@pytest.fixture
def images():
    return torch.randint(0, 256, (64, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def test_colours_change_as_torchvisions_do():
    """In floats of the middle range, where torchvision's clamping to 0 and 1 changes nothing."""
    pixels = 0.4 + 0.2 * torch.rand(8, 3, 16, 16, generator=generator())
    factors = [uniform(0.8, 1.2, 8, generator(seed)) for seed in range(3)]
    expected = []
    for at, image in enumerate(pixels):
        image = tv.adjust_brightness(image, factors[0][at].item())
        image = tv.adjust_contrast(image, factors[1][at].item())
        expected.append(tv.adjust_saturation(image, factors[2][at].item()))
    # torchvision weighs red, green and blue by rounded numbers of its own
    assert (jitter(pixels, *factors) - torch.stack(expected)).abs().max() < 1e-3


def test_a_factor_of_one_and_no_movement_change_nothing(images):
    ones, zeros = torch.ones(64), torch.zeros(64)
    pixels = images.float()
    assert torch.allclose(jitter(pixels, ones, ones, ones), pixels, atol=1e-3)
    still = warp(pixels, angle=zeros, shear=zeros, scale=ones, shift=torch.zeros(64, 2))
    assert torch.allclose(still, pixels, atol=1e-2)


def test_half_of_the_images_are_mirrored():
    """One bright column at the left: mirrored, it comes to the right."""
    images = torch.zeros(400, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 8:24, 4:8] = 200
    changed = augment(images, "colour", generator()).float().sum(dim=(1, 2))
    to_the_right = (changed[:, 16:].sum(dim=1) > changed[:, :16].sum(dim=1)).double().mean()
    assert 0.4 < to_the_right < 0.6


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_the_same_generator_gives_the_same_images_and_each_its_own(images, kind):
    before = images.clone()
    one, same, other = (augment(images, kind, generator(seed)) for seed in (1, 1, 2))
    assert one.shape == images.shape and one.dtype == torch.uint8 and torch.equal(one, same)
    assert torch.equal(one, other) == (kind == "none") and torch.equal(images, before)
    alike = augment(images[:1].expand(8, -1, -1, -1), kind, generator())
    assert len({image.numpy().tobytes() for image in alike}) == (1 if kind == "none" else 8)


def test_what_is_not_possible_is_said(images):
    with pytest.raises(UserError, match="three channels, these have 1"):
        augment(images[:, :1], "colour", generator())
    with pytest.raises(ValueError, match="unknown"):
        augment(images, "colours", generator())
