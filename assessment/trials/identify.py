"""Which images a forward pass took, and whether it taught: the recorder's events, before they are put into steps.

A pass teaches where its outcome came back through the network. Its images are found by their pixels; where a script
has changed them more than that allows (turned, mixed, erased), by what it had fetched right before.
"""

from collections import deque


def identify(rank, data, is_whole=True):
    """Complete the forward passes among the events of ``rank``, and take out those that train another network.

    Each gets ``teaches``, ``rows`` (indices in the split that it is about, None for others), ``inputs`` (the sum of
    the images' fingerprints) and ``training_images``, a number, where it only judges. A pass of images of neither split
    before anything was trained shows nothing, nor does one in training mode whose outcome nobody uses, nor one that was
    going to teach when the run broke off (not ``is_whole``): all go as well.
    """
    taught = {one["number"] for one in rank.named("backward")}
    held = {key for one in rank.named("step") for key in one["parameters"]}
    forwards = rank.named("forward")
    may_teach = forwards[-1:] if forwards and forwards[-1].get("teaches") and not is_whole else []
    for one in forwards:
        one["teaches"] = one["number"] in taught or one["is_transformed"]
    broken_off = [one["number"] for one in may_teach if not one["teaches"]]
    has_own = any(one["teaches"] and held & set(one["parameters"]) for one in forwards)
    fetched, kept, has_trained = Fetched(data), [], False
    for event in rank.events:
        if event["event"] == "fetch":
            fetched.add(event)
            continue
        if event["event"] == "forward" and event["teaches"]:
            if has_own and not held & set(event["parameters"]):
                continue  # a pass to warm up a copy, say
            _learned(event, fetched, data)
            has_trained = True
        elif event["event"] == "forward" and "rows" in event:
            _judged(event, fetched, data)
            is_strange = not event["training_images"] and all(row is None for row in event["rows"])
            is_unused = not event["rows"] and event["layers_in_training"]
            rank.unused += event["training_images"] * is_unused
            if is_unused or (is_strange and not has_trained) or event["number"] in broken_off:
                continue
        kept.append(event)
    rank.events[:] = kept


def _learned(event, fetched, data):
    pixels = event.get("rows", [])
    event["inputs"] = [sum(column) for column in zip(*pixels, strict=True)]
    event["rows"] = _filled(data.find("train", pixels), fetched.next("train", len(pixels)))


def _judged(event, fetched, data):
    train, test = (data.find(split, event["rows"]) for split in ("train", "test"))
    learned = [known is not None and other is None for known, other in zip(train, test, strict=True)]
    event["training_images"] = sum(learned)
    seen = _filled(test, fetched.next("test", len(test)))
    event["rows"] = [row for row, is_learned in zip(seen, learned, strict=True) if not is_learned]
    event["correct"] = _correct(event, seen, learned, data.test.labels)


def _correct(event, rows, learned, labels):
    """Return how many of the test images of a pass are known; None where that was not seen."""
    logits = event.get("logits", [])
    if len(logits) != len(rows):
        return None
    judged = [(row, one) for row, one, is_learned in zip(rows, logits, learned, strict=True) if not is_learned]
    return sum(row is not None and int(labels[row]) == one.index(max(one)) for row, one in judged)


def _filled(rows, fetched):
    """Return what was fetched in the place of ``rows``, where it is as many images and those that are known are of it.

    An image mixed with another may look like that one: it is the place that counts.
    """
    known = {row for row in rows if row is not None}
    return fetched if len(rows) == len(fetched) and known <= set(fetched) else rows


class Fetched:
    """The images that were fetched and not yet used, of each split."""

    def __init__(self, data):
        self.sizes = {"train": len(data.train), "test": len(data.test)}
        self.fresh = {split: [] for split in self.sizes}  # since the last pass, fetch by fetch
        self.left = {split: deque() for split in self.sizes}  # of what was fetched before
        self.ahead = {split: deque() for split in self.sizes}  # dealt to a loader's workers, to be used in that order

    def add(self, event):
        """Note the event ``fetch``; what a loader deals is of the split that has as many images as its dataset."""
        if "split" in event:
            self.fresh[event["split"]].append(event["rows"])
        else:
            self.ahead["test" if event["of"] == self.sizes["test"] else "train"] += event["rows"]

    def next(self, split, count):
        """Return the ``count`` images that a pass takes: the last that were fetched, or what is left of earlier ones.

        Fewer come back where not so many were.
        """
        pool = self.ahead if self.ahead[split] else self.left
        if pool is self.left and self.fresh[split]:
            last = deque()
            while self.fresh[split] and len(last) < count:
                last.extendleft(reversed(self.fresh[split].pop()))
            self.left[split] = last
        self.fresh[split].clear()
        return [pool[split].popleft() for _ in range(min(count, len(pool[split])))]
