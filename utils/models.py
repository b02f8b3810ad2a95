"""The networks of the course. Each takes uint8 images [N, C, H, W] and returns logits [N, classes].

They normalise the images themselves, so saved weights can be scored by anyone who knows the name.
"""

import torch
from torch import nn
from torch.nn import functional as F

from utils.errors import UserError

MODELS = ("lenet", "resnet18", "wide-resnet", "wide-resnet-tiny")


class Normalize(nn.Module):
    """Map uint8 pixels to floats from -1 to 1, channels last where the image has several channels."""

    def forward(self, images):
        pixels = images.float().div(127.5).sub(1)
        return pixels.contiguous(memory_format=torch.channels_last)


class WideBlock(nn.Module):
    """Add two 3x3 convolutions to the input; a 1x1 convolution on the shortcut where channels change.

    From wide residual networks (Zagoruyko and Komodakis 2016): dropout stands between the convolutions.
    """

    def __init__(self, channels_in, channels, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        same = channels_in == channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, bias=False)

    def forward(self, inputs):
        hidden = self.dropout(F.relu(self.norm1(self.conv1(inputs))))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


class BasicBlock(nn.Module):
    """The block of ResNet-18 (He et al. 2016): two 3x3 convolutions, the first may halve the size."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, inputs):
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


def stem(channels_in, channels):
    """Return the first layers of a residual network: convolution, BatchNorm, ReLU."""
    convolution = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU()]


def head(channels, classes):
    """Return the last layers of a residual network: global average pooling and one linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def wide_resnet(channels, classes, stem_width, widths, dropout, pool_stem):
    """Build a wide residual network: a stem, three stages of two blocks, max-pools between them."""
    layers = stem(channels, stem_width)
    if pool_stem:
        layers.append(nn.MaxPool2d(2))
    channels_in = stem_width
    for stage, width in enumerate(widths):
        if stage > 0:
            layers.append(nn.MaxPool2d(2))
        layers += [WideBlock(channels_in, width, dropout), WideBlock(width, width, dropout)]
        channels_in = width
    return nn.Sequential(Normalize(), *layers, *head(channels_in, classes))


def resnet18(channels, classes, widths):
    """Build ResNet-18 as it is used for small images: a 3x3 stem of stride 1 without a max-pool."""
    layers = stem(channels, widths[0])
    channels_in = widths[0]
    for stage, width in enumerate(widths):
        layers += [BasicBlock(channels_in, width, 1 if stage == 0 else 2), BasicBlock(width, width, 1)]
        channels_in = width
    return nn.Sequential(Normalize(), *layers, *head(channels_in, classes))


def lenet(channels, classes, widths, dropout):
    """Build LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, for images of any size; no BatchNorm."""
    first, second, hidden, features = widths
    return nn.Sequential(
        Normalize(),
        nn.Conv2d(channels, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(5),
        nn.Flatten(),
        nn.Linear(second * 25, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, features),
        nn.ReLU(),
        nn.Linear(features, classes),
    )


def build(name, channels, classes, *, width=1.0, dropout=0.01):
    """Build the network ``name`` for images of ``channels`` channels, weights in channels_last.

    ``width`` multiplies the number of channels of every layer (a quarter makes ResNet-18 a laptop's
    size). ``dropout`` is a probability; ``resnet18`` has none. Raises ``UserError`` for a name that
    is not in ``MODELS`` or a width that leaves a layer without channels.
    """

    def scaled(*sizes):
        if width * min(sizes) < 1:
            raise UserError(f"--width {width} leaves {name} a layer without channels; choose a larger one")
        return [round(size * width) for size in sizes]

    if name == "lenet":
        network = lenet(channels, classes, scaled(6, 16, 120, 84), dropout)
    elif name == "resnet18":
        network = resnet18(channels, classes, scaled(64, 128, 256, 512))
    elif name == "wide-resnet":
        stem_width, *widths = scaled(16, 160, 320, 640)
        network = wide_resnet(channels, classes, stem_width, widths, dropout, pool_stem=False)
    elif name == "wide-resnet-tiny":
        stem_width, *widths = scaled(8, 16, 32, 64)
        network = wide_resnet(channels, classes, stem_width, widths, dropout, pool_stem=True)
    else:
        raise UserError(f"--model {name} is unknown; choose one of {', '.join(MODELS)}")
    return network.to(memory_format=torch.channels_last)
