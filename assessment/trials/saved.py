"""Say what a run saved as ``model.pt``: its tensors' names and sketches, and what the network sees in each test image.

    python -m assessment.trials.saved model.pt digits data

prints that as one line of JSON, for the prepared dataset ``digits`` below ``data``. Where the file is a stranger's,
this runs in his sandbox: there it may come to harm, or take so long that the answer is no longer waited for.
"""

import json
import sys
import zipfile
from pathlib import Path

import torch

from assessment.recorder.networks import bare
from assessment.recorder.sketch import sketch
from utils import models
from utils.data import load
from utils.errors import shortened

LARGEST = 200_000_000  # numbers in all tensors together
MOST_NAMES, LONGEST_NAME = 5_000, 500  # tensors, and letters of the name of one


def examined(path, test):
    """Return what ``path`` holds as plain values, None where there is no such file.

    ``test`` are the images that are judged. The keys: ``problem`` (in words why it is no state dictionary, else
    None), ``names``, ``sketches`` (of floating-point numbers, by name), ``predictions`` (None for no network of the
    course).
    """
    state = load_weights(path)
    if not isinstance(state, dict):
        return state and {"problem": state, "names": [], "sketches": {}, "predictions": None}
    floats = {name: value for name, value in state.items() if torch.is_floating_point(value)}
    network = rebuilt(state, test)
    return {
        "problem": None,
        "names": list(state),
        "sketches": {name: sketch(value) for name, value in floats.items()},
        "predictions": None if network is None else predictions(network, test.images).tolist(),
    }


def load_weights(path):
    """Return the state dictionary in ``path``, None where there is no such file, or in words why it is none."""
    if not path.exists():
        return None
    if zipfile.is_zipfile(path) and any(one.compress_type for one in zipfile.ZipFile(path).infolist()):
        return "model.pt is compressed; torch.save does not do that"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0][:120]
        return f"model.pt cannot be loaded with weights_only=True: {reason}"
    if not isinstance(state, dict) or not all(torch.is_tensor(one) for one in state.values()):
        is_named = isinstance(state, dict)
        held = f"[{', '.join(map(shortened, list(state)[:3]))}]" if is_named else type(state).__name__[:60]
        return f"model.pt holds {held}, not the state_dict of a network"
    if sum(one.numel() for one in state.values()) > LARGEST:
        return f"model.pt holds more than {LARGEST:,} numbers"
    if not all(isinstance(name, str) for name in state):
        return "model.pt holds tensors without names, not the state_dict of a network"
    if len(state) > MOST_NAMES or any(len(name) > LONGEST_NAME for name in state):
        return f"model.pt holds more than {MOST_NAMES:,} tensors, or names of more than {LONGEST_NAME} letters"
    return state


def rebuilt(state, test):
    """Return the network of the course that ``state`` fits, in evaluation mode; None where none does.

    The names that a wrapper puts before a network's are left out: what was saved with them is that network's.
    """
    state = {bare(name): value for name, value in state.items()}
    channels, classes = test.images.shape[1], len(test.classes)
    for name in models.MODELS:
        network = models.build(name, channels, classes, width=1.0, dropout=0.0)
        fits = network.state_dict().keys() == state.keys()
        if fits and all(one.shape == state[key].shape for key, one in network.state_dict().items()):
            network.load_state_dict(state)
            return network.eval()
    return None


@torch.inference_mode()
def predictions(network, images):
    """Return the class that ``network`` finds likeliest for each of ``images``: int64 [N]."""
    return torch.cat([network(part).argmax(dim=1) for part in images.split(500)])


if __name__ == "__main__":
    print(json.dumps(examined(Path(sys.argv[1]), load(sys.argv[2], sys.argv[3], "test"))))
