"""Figures with sliders: drawn at once, and anew when a slider moves."""

from utils.notebook import plots
from utils.notebook.widgets import explore


def test_a_figure_follows_its_sliders():
    drawn = []

    def draw(rate, momentum):
        drawn.append((rate, momentum))
        alt = f"rate {rate:.2f}, momentum {momentum:.2f}"
        return plots.lines({"a": ([0, 1], [rate, momentum])}, xlabel="x", ylabel="y", title="t", alt=alt)

    panel = explore(draw, rate=(0.0, 1.0, 0.5), momentum=(0.0, 0.9, 0.0))
    first, second, picture = panel.children
    assert drawn == [(0.5, 0.0)] and 'alt="rate 0.50, momentum 0.00"' in picture.value
    first.value = 0.75
    second.value = 0.9
    assert drawn[1:] == [(0.75, 0.0), (0.75, 0.9)] and 'alt="rate 0.75, momentum 0.90"' in picture.value
