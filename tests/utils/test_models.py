"""The networks have the shape that the course describes, and judge uint8 images as they come."""

import pytest
import torch
from torch import nn

from utils.errors import UserError
from utils.models import MODELS, WideBlock, build


@pytest.mark.parametrize("name", [name for name in MODELS if name != "wide-resnet"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_uint8_images_in_finite_logits_out(name, channels, size):
    network = build(name, channels, 10, width=0.25 if name == "resnet18" else 1.0)
    images = torch.randint(256, (3, channels, size, size), dtype=torch.uint8)
    logits = network(images)
    assert logits.shape == (3, 10)
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "stem", "widths", "pools"),
    [("wide-resnet", 16, [160, 320, 640], 2), ("wide-resnet-tiny", 8, [16, 32, 64], 3)],
)
def test_wide_residual_networks_are_built_as_described(name, stem, widths, pools):
    network = build(name, 3, 10)
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    assert first.out_channels == stem
    blocks = [module for module in network if isinstance(module, WideBlock)]
    assert [block.conv1.out_channels for block in blocks] == [width for width in widths for _ in range(2)]
    assert [isinstance(block.shortcut, nn.Conv2d) for block in blocks] == [True, False] * 3
    assert all(block.dropout.p == 0.01 for block in blocks)
    assert sum(isinstance(module, nn.MaxPool2d) for module in network) == pools
    assert isinstance(network[-1], nn.Linear)


def test_lenet_has_no_batch_statistics():
    """The invariant of the course is tested on it: nothing in it looks at one share of a batch alone."""
    assert not list(build("lenet", 1, 10).buffers())


def test_width_multiplies_channels():
    full, quarter = build("resnet18", 3, 10), build("resnet18", 3, 10, width=0.25)
    assert full[-1].in_features == 4 * quarter[-1].in_features == 512


@pytest.mark.parametrize(("name", "width"), [("unknown", 1.0), ("wide-resnet-tiny", 0.01)])
def test_what_cannot_be_built_is_said_in_one_line(name, width):
    with pytest.raises(UserError) as caught:
        build(name, 1, 10, width=width)
    assert "\n" not in str(caught.value) and name in str(caught.value)
