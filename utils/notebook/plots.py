"""The figures of the course: labelled axes, units, a text alternative, readable without colour."""

import base64
import io
from html import escape

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

# Okabe and Ito's colours, told apart with every kind of colour vision; line styles serve greyscale.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx")


class Picture:
    """A finished figure with a text alternative, for notebooks: the text is the image's ``alt``."""

    def __init__(self, figure, alt):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=144, bbox_inches="tight")
        self.png, self.alt = file.getvalue(), alt
        self.width = round(figure.get_size_inches()[0] * 96)

    def _repr_mimebundle_(self, include=None, exclude=None):
        source = base64.b64encode(self.png).decode()
        style = f"width: {self.width}px; max-width: 100%"
        image = f'<img alt="{escape(self.alt)}" style="{style}" src="data:image/png;base64,{source}">'
        return {"text/html": image, "text/plain": self.alt}


def axes(columns=1, width=9.0, height=3.4):
    """Return a figure and its ``columns`` axes side by side; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    panes = figure.subplots(1, columns, squeeze=False)[0]
    for pane in panes:
        pane.grid(alpha=0.3)
        pane.spines[["top", "right"]].set_visible(False)
    return figure, panes


def style(number):
    """Return colour, line style and marker of the line ``number``."""
    at = number % len(COLOURS)
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]  # the eighth line differs from the first
    return {"color": COLOURS[at], "linestyle": STYLES[at], "marker": marker, "markersize": 5}


def training_figure(rows, title=""):
    """Draw loss and accuracy of one run over its epochs, from the rows of ``metrics.csv``."""
    figure, (left, right) = axes(2)
    epochs = [row["epoch"] for row in rows]
    for name, label, number in (("train", "training", 0), ("val", "validation", 1)):
        left.plot(epochs, [row[f"{name}_loss"] for row in rows], label=label, **style(number))
        right.plot(epochs, [row[f"{name}_accuracy"] for row in rows], label=label, **style(number))
    left.set(xlabel="epoch", ylabel="loss (nats per image)", title=title or "loss")
    right.set(xlabel="epoch", ylabel="accuracy", title="accuracy", ylim=(0, 1))
    for pane in (left, right):
        pane.xaxis.get_major_locator().set_params(integer=True)
        pane.legend()
    last = f"; after epoch {epochs[-1]} validation accuracy is {rows[-1]['val_accuracy']:.3f}" if rows else ""
    return Picture(figure, f"Loss and accuracy over {len(rows)} epochs, for training and validation{last}.")


def lines(series, *, xlabel, ylabel, title, alt, log="", base=2, markers=True):
    """Draw one line for each of ``series`` (label to x and y values); ``log`` names axes, as in ``"x"``.

    ``base`` is that of the logarithm; ``markers=False`` is for lines of many points.
    """
    figure, (pane,) = axes()
    for number, (label, (xs, ys)) in enumerate(series.items()):
        pane.plot(xs, ys, label=label, **style(number) | ({} if markers else {"marker": ""}))
    pane.set(xlabel=xlabel, ylabel=ylabel, title=title)
    for axis in log:
        getattr(pane, f"set_{axis}scale")("log", base=base)
        plain = getattr(pane, f"{axis}axis")
        plain.set_major_formatter(lambda value, _position: f"{value:g}")
        plain.set_minor_formatter(NullFormatter())
    if len(series) > 4:
        figure.legend(*pane.get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    elif len(series) > 1:
        pane.legend()
    return Picture(figure, alt)


def shares(parts, *, xlabel, title, alt):
    """Draw a horizontal bar for each label of ``parts``, cut into named pieces (name to length)."""
    figure, (pane,) = axes(height=0.9 + 0.55 * len(parts))
    names = list(dict.fromkeys(name for pieces in parts.values() for name in pieces))
    starts = dict.fromkeys(parts, 0.0)
    for number, name in enumerate(names):
        lengths = [pieces.get(name, 0.0) for pieces in parts.values()]
        look = {"color": style(number)["color"], "hatch": HATCHES[number % 4], "edgecolor": "white"}
        pane.barh(list(parts), lengths, left=list(starts.values()), label=name, height=0.6, **look)
        starts = {label: starts[label] + length for label, length in zip(parts, lengths, strict=True)}
    pane.invert_yaxis()
    pane.set(xlabel=xlabel, title=title)
    pane.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, alt)


def curves_figure(curves, label, *, target=None, against=("seconds", "samples"), alt=None):
    """Draw accuracy against seconds and against images seen, or one of them, a line for each of ``curves``.

    ``label`` names a curve; curves of one name share colour and style (they differ by seed). Diverged
    curves end in a cross. The text alternative, unless given, says where they end.
    """
    figure, panes = axes(len(against), width=11.0 if len(against) > 1 else 9.0)
    names = list(dict.fromkeys(map(label, curves)))
    words = {
        "seconds": ("training time (s)", "against time", 1),
        "samples": ("images seen (thousands)", "against images seen", 1 / 1_000),
    }
    for pane, key in zip(panes, against, strict=True):
        for curve in curves:
            number = names.index(label(curve))
            first = curve is next(one for one in curves if label(one) == names[number])
            xs = [words[key][2] * point[key] for point in curve.points]
            ys = [point["val_accuracy"] for point in curve.points]
            pane.plot(xs, ys, label=names[number] if first else None, **style(number))
            if curve.diverged:
                pane.plot(xs[-1], ys[-1], marker="x", markersize=13, markeredgewidth=3, color="#cc3311")
        if target is not None:
            pane.axhline(target, label=f"target {target}", color="#555555", linewidth=1, linestyle=(0, (4, 2)))
        pane.set(xlabel=words[key][0], ylabel="validation accuracy", title=words[key][1], ylim=(0, 1))
    if any(curve.diverged for curve in curves):
        look = {"linestyle": "", "marker": "x", "markersize": 9, "markeredgewidth": 3, "color": "#cc3311"}
        panes[0].plot([], [], label="diverged", **look)
    figure.legend(*panes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    return Picture(figure, alt or f"{len(curves)} runs. {ends(curves, label)}")


def overlay(curves, *, target=None):
    """Draw several runs in one figure, each named by the settings in which they differ."""
    names = sorted(set().union(*(curve.settings for curve in curves)))
    differing = [name for name in names if len({str(curve.settings.get(name)) for curve in curves}) > 1]

    def label(curve):
        return ", ".join(f"{name.replace('_', ' ')} {curve.settings.get(name)}" for name in differing) or "all runs"

    return curves_figure(curves, label, target=target)


def ends(curves, label):
    """Say in words where ``curves`` end: the accuracy, or the range of those of one ``label``."""
    last = {}
    for curve in curves:
        last.setdefault(label(curve), []).append(curve.accuracy)
    told = [f"{name}: {min(some):.2f}{f' to {max(some):.2f}' if len(some) > 1 else ''}" for name, some in last.items()]
    return f"Accuracy at the end: {'; '.join(told)}."


def bars(series, names, *, ylabel, title, alt, spread=None):
    """Draw a group of bars for each of ``names``, a bar for each of ``series`` (label to heights).

    ``spread`` gives a label's lowest and highest values, drawn as a line over each bar.
    """
    figure, (pane,) = axes()
    width = 0.8 / len(series)
    for number, (label, heights) in enumerate(series.items()):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(names))]
        look = {"color": style(number)["color"], "hatch": HATCHES[number % 4], "edgecolor": "white"}
        pane.bar(places, heights, width, label=label, **look)
        if spread:
            pane.vlines(places, *spread[label], color="#333333", linewidth=1.5)
    pane.set(xticks=range(len(names)), ylabel=ylabel, title=title)
    pane.set_xticklabels(names)
    figure.legend(*pane.get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    return Picture(figure, alt)
