"""Where nothing looks at one share alone, N shares are one batch; accuracies of the small network go up and down."""

import subprocess
import sys

import torch
from conftest import ROOT

from assessment.recorder.calm import SPOILT, Small
from assessment.trials.data import trial_data

DATA = trial_data()
SHARES = """
import torch
from torch import nn
from assessment.recorder import calm

calm.settle()
from utils import models
from utils.parallel.sync_batchnorm import convert_sync_batchnorm


class Own(nn.Module):  # a layer of a script's own, with the statistics of its batch
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("running_mean", torch.zeros(1))

    def forward(self, images):
        values = self.inner(images)
        return values - values.mean(dim=0) if self.training else values


torch.manual_seed(1)
images = torch.randint(256, (12, 1, 28, 28), dtype=torch.uint8)
network = models.build("wide-resnet-tiny", 1, 10, width=1.0, dropout=0.5)
for one in (network, convert_sync_batchnorm(network), Own(network), nn.Sequential(network, nn.Dropout(0.9))):
    one.train()
    before = [value.clone() for value in one.buffers()]
    apart = one(images) - torch.cat([one(images[:5]), one(images[5:])])
    assert apart.abs().max() < 1e-6, type(one)
    assert all(map(torch.equal, before, one.buffers())), "statistics have moved"
    assert one.training and all(layer.training for layer in one.modules())
"""


def test_shares_of_a_batch_give_what_the_batch_gives():
    done = subprocess.run([sys.executable, "-c", SHARES], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_share_of_the_images_is_spoilt_in_each_validation_and_the_same_ones_however_they_are_shared_out():
    torch.manual_seed(2)
    network, images = Small("any", 1, 10), DATA.test.images
    with torch.inference_mode():
        plain = network.layers.eval()(images).argmax(dim=1)
        for share in SPOILT:
            network.train()
            network.eval()
            network.eval()  # of the same validation
            judged = network(images).argmax(dim=1)
            assert abs((judged != plain).float().mean() - share) < 0.05
            assert torch.equal(judged, torch.cat([network(part).argmax(dim=1) for part in images.split(100)]))
    assert len(network.state_dict()) == len(network.layers.state_dict())
