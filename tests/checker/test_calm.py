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
    network, images = Small("any", 1, 10).eval(), DATA.test.images
    network.validations = 0
    with torch.inference_mode():
        plain = torch.nn.Sequential.forward(network, images).argmax(dim=1)
        for share in SPOILT:
            network.train()
            network.eval()
            network.eval()  # of the same validation
            judged = network(images).argmax(dim=1)
            assert abs((judged != plain).float().mean() - share) < 0.05
            assert torch.equal(judged, torch.cat([network(part).argmax(dim=1) for part in images.split(100)]))
    assert all(name[0].isdigit() for name in network.state_dict()), "more than its layers is kept"


DRAWS = """
import random
from types import SimpleNamespace

import torch
from torch import nn
from assessment.recorder.draws import settle_draws
from assessment.recorder.sketch import directions

recorder = SimpleNamespace(has_fetched=False)
settle_draws(recorder)
torch.manual_seed(4)
before = torch.rand(8), torch.randint(2, 9, (8,)), torch.randn(8), random.random()
assert all(one.unique().numel() > 2 for one in before[:3])
recorder.has_fetched = True
for seed in (1, 2):
    own = torch.Generator().manual_seed(seed)
    random.seed(seed)
    drawn = (
        torch.rand(3, generator=own), torch.rand_like(torch.ones(3)), torch.empty(3).uniform_(-1, 1, generator=own),
        torch.randn(3, generator=own), torch.empty(3).normal_(2, 1), torch.bernoulli(torch.full((3,), 0.7)),
        torch.empty(3).bernoulli_(0.3), torch.randint(5, (3,), generator=own), torch.randint(2, 5, size=(3,)),
        torch.randint(high=8, size=(3,)), torch.tensor([random.random(), random.uniform(2, 4), random.gauss(1, 2)]),
        torch.tensor([random.randint(1, 6), random.randrange(10), random.randrange(5, 10)]),
    )
    told = [one.tolist() for one in drawn]
    assert seed == 1 or told == earlier, "what is drawn depends on the seed"
    earlier = told
assert all(one.unique().numel() == 1 for one in drawn[:10])
assert drawn[4][0] == 2.4 and drawn[5][0] == 1 and drawn[6][0] == 0
assert [int(one[0]) for one in drawn[7:10]] == [2, 3, 3] and told[11] == [3, 4, 7]
assert directions(100).unique().numel() > 300, "the recorder's own directions are settled"
assert torch.randperm(100).tolist() != torch.randperm(100).tolist(), "orders are no longer drawn"
weights = nn.Linear(30, 30).weight
assert weights.unique().numel() > 800, "weights are no longer drawn"
nn.init.normal_(weights)
assert weights.unique().numel() > 800
"""


def test_what_is_drawn_for_images_is_the_same_for_all_once_one_was_fetched():
    done = subprocess.run([sys.executable, "-c", DRAWS], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
