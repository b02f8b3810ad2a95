"""The drawings that explain: what each rank holds, does and is called, images, and paths over a loss."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from utils.notebook.plots import COLOURS, Picture, axes, style


def words_of_the_field():
    """Draw two nodes of two processes each, and the words that name them."""
    figure = Figure(figsize=(9.0, 3.7), layout="constrained")
    pane = figure.subplots()
    pane.set(xlim=(0, 100), ylim=(0, 53))
    pane.text(50, 52.5, "the world: all processes together, world size 4", ha="center", va="top", fontsize=11)
    pane.axis("off")

    def box(left, bottom, width, height, colour, text, top):
        patch = FancyBboxPatch((left, bottom), width, height, boxstyle="round,pad=0.4", fc=colour, ec="#333333")
        pane.add_patch(patch)
        pane.text(left + width / 2, top, text, ha="center", va="top", fontsize=10, linespacing=1.5)

    for node in (0, 1):
        box(2 + 50 * node, 12, 46, 35, "#f2f2f2", f"node {node}: one machine", 46)
        for local_rank in (0, 1):
            rank = 2 * node + local_rank
            told = f"process\nglobal rank {rank}\nlocal rank {local_rank}\ndevice {local_rank} of this node"
            box(4.5 + 50 * node + 22 * local_rank, 18, 19, 20, "#cfe5f3", told, 36)
            pane.annotate(
                "",
                xy=(14 + 50 * node + 22 * local_rank, 8),
                xytext=(14 + 50 * node + 22 * local_rank, 16),
                arrowprops={"arrowstyle": "<->", "color": "#333333"},
            )
    box(2, 1.5, 96, 5.5, "#fbe3d0", "backend: carries tensors between all processes (gloo on CPUs, NCCL on GPUs)", 6.3)
    alt = (
        "Two nodes, each with two processes: world size 4. Global ranks count through all processes, 0 to 3; local"
        " ranks start at 0 on each node and choose the device. The backend below connects all four."
    )
    return Picture(figure, alt)


def pictures(images, labels, classes, columns=12):
    """Draw uint8 images [N, C, H, W] in rows, each under the name of its class."""
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(9.0, 0.95 * rows), layout="constrained")
    panes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for pane in panes:
        pane.axis("off")
    for pane, image, label in zip(panes, images, labels, strict=False):
        pixels = image.permute(1, 2, 0).numpy()
        pane.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255)
        pane.set_title(classes[label], fontsize=9, pad=2)
    named = ", ".join(classes[label] for label in labels)
    return Picture(figure, f"{len(images)} images of the dataset, of the classes {named}.")


def loss_surface(loss, paths, *, span, xlabel, ylabel, title, alt):
    """Draw the contours of ``loss(x, y)`` and ``paths`` (label to points [N, 2]) over it.

    ``loss`` takes two grids of equal shape; ``span`` is (x low, x high, y low, y high).
    """
    figure, (pane,) = axes(height=4.2)
    xs, ys = np.meshgrid(np.linspace(*span[:2], 120), np.linspace(*span[2:], 120))
    heights = loss(xs, ys)
    levels = np.geomspace(max(heights.min(), heights.max() / 1e4), heights.max(), 14)
    pane.contour(xs, ys, heights, levels=levels, colors="#999999", linewidths=0.7)
    for number, (label, points) in enumerate(paths.items()):
        pane.plot(points[:, 0], points[:, 1], label=label, linewidth=1.3, **style(number) | {"markersize": 3})
    pane.set(xlabel=xlabel, ylabel=ylabel, title=title, xlim=span[:2], ylim=span[2:])
    pane.legend(loc="lower right")
    return Picture(figure, alt)


def chunk_tables(tables, titles, *, alt):
    """Draw what each rank holds of each chunk, a table for each step of a collective.

    ``tables`` holds for each step a list of ranks, each a list of texts, one a chunk: a digit a rank, 1 where
    its part is in the sum. The more parts a chunk has, the darker it is; what changed has a frame.
    """
    columns = -(-len(tables) // 2) if len(tables) > 4 else len(tables)
    rows = -(-len(tables) // columns)
    figure = Figure(figsize=(9.0, 2.35 * rows), layout="constrained")
    panes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for pane in panes:
        pane.axis("off")
    for number, (pane, table, title) in enumerate(zip(panes, tables, titles, strict=False)):
        ranks, chunks = len(table), len(table[0])
        pane.set(xlim=(-0.9, chunks), ylim=(ranks, -0.5), aspect="equal")
        pane.set_title(title, fontsize=10, pad=0)
        for chunk in range(chunks):
            pane.text(chunk + 0.5, -0.08, f"chunk {chunk}", ha="center", va="bottom", fontsize=6.5)
        for rank in range(ranks):
            pane.text(-0.12, rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=8)
            for chunk in range(chunks):
                text = table[rank][chunk]
                share = text.count("1") / len(text)
                changed = number > 0 and tables[number - 1][rank][chunk] != text
                look = {"facecolor": (1 - share, 1 - 0.55 * share, 1 - 0.3 * share), "edgecolor": "#999999"}
                frame = {"edgecolor": COLOURS[1], "linewidth": 2.2, "zorder": 3} if changed else {}
                pane.add_patch(Rectangle((chunk + 0.04, rank + 0.04), 0.92, 0.92, **look | frame))
                ink = "white" if share > 0.7 else "black"
                pane.text(chunk + 0.5, rank + 0.5, text, ha="center", va="center", fontsize=7.5, color=ink, zorder=4)
    return Picture(figure, alt)


def timelines(runs, *, alt):
    """Draw what each rank does in one step: for each of ``runs`` (title to ranks) two lanes a rank.

    A rank is a list of (kind, start, length) in milliseconds; kinds are forward, backward and all-reduce.
    """
    looks = {
        "forward": {"color": COLOURS[5], "hatch": ""},
        "backward": {"color": COLOURS[0], "hatch": ""},
        "all-reduce": {"color": COLOURS[1], "hatch": "//"},
    }
    figure, panes = axes(len(runs), height=2.9)
    end = max(start + length for ranks in runs.values() for spans in ranks for _, start, length in spans)
    for pane, (title, ranks) in zip(panes, runs.items(), strict=True):
        for rank, spans in enumerate(ranks):
            for kind, start, length in spans:
                lane = 2 * rank + (kind == "all-reduce")
                look = looks[kind] | {"edgecolor": "white", "linewidth": 0.4, "height": 0.8}
                pane.barh(lane, length, left=start, label=kind, **look)
        names = [f"rank {rank} {lane}" for rank in range(len(ranks)) for lane in ("computes", "communicates")]
        pane.set_yticks(range(len(names)), names if pane is panes[0] else [""] * len(names), fontsize=8)
        pane.set(xlabel="milliseconds", title=title, xlim=(0, end * 1.02))
        pane.invert_yaxis()
    handles, labels = panes[0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=3, fontsize=9)
    return Picture(figure, alt)
