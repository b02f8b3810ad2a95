"""Score weights on images, in a process that has run nothing of the script that made them.

    python -m assessment.grader.scoring model.pt wide-resnet-tiny test.pt hidden.pt

prints the accuracy on each file of images as a list of JSON. Nothing is unpickled but tensors.
"""

import json
import sys

import torch

from utils import models

MOST_SAID = 300  # letters of what is wrong with weights


@torch.inference_mode()
def accuracies(weights, model, files):
    """Return the accuracy of the network ``model`` with the state dictionary in ``weights`` on each of ``files``.

    Raises ``RuntimeError`` or ``pickle.UnpicklingError`` where the weights are none, or do not fit.
    """
    held = [torch.load(path, weights_only=True) for path in files]
    state = torch.load(weights, map_location="cpu", weights_only=True)
    classes = 1 + max(int(one["labels"].max()) for one in held)
    network = models.build(model, held[0]["images"].shape[1], classes)
    network.load_state_dict(state)
    network.eval()
    found = []
    for one in held:
        answers = torch.cat([network(part).argmax(dim=1) for part in one["images"].split(500)])
        found.append((answers == one["labels"]).double().mean().item())
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(accuracies(sys.argv[1], sys.argv[2], sys.argv[3:])))
    except Exception as error:  # it may hold names of any length
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_SAID]}")
