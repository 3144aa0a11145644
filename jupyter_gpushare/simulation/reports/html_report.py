"""Report for a browser: one HTML file that contains its plotting library."""

from __future__ import annotations

import html
import importlib.util
from itertools import cycle
from typing import Any

from . import text_report
from .report_data import BINS, TimelineData
from .results import LENGTH_CLASSES, Results, quantile

_COLOURS = ("#3266a8", "#d1622b", "#3f8f4f", "#8256a8", "#a83252", "#7a6a3a")
_WAITING = "#d9d9d9"
_POINTS = 400  # intervals of a curve
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .25rem .7rem; text-align: right; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tr + tr { border-top: 1px solid #ddd; } p.note { color: #555; }
"""


class PlotlyMissing(Exception):
    """Error about the plotting library, which is not installed."""


def require_plotly() -> None:
    """Check that plotly is installed. Raises PlotlyMissing."""
    if importlib.util.find_spec("plotly") is None:
        raise PlotlyMissing("--html needs plotly: pip install 'jupyter-gpushare[reports]'")


def render_page(figures: dict[str, Any], pooled: dict[str, Results], timelines: dict[str, TimelineData]) -> str:
    """Return the report as HTML. Raises PlotlyMissing.

    `pooled` has the results of all seeds, and `timelines` has data of the first seed.
    """
    require_plotly()
    from plotly import graph_objects as go
    from plotly.offline import get_plotlyjs

    colours = dict(zip(pooled, cycle(_COLOURS), strict=False))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Simulated GPU sharing</title>",
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>",
        f"<h1>Simulated GPU sharing</h1><p>{html.escape(text_report.heading(figures))}</p>",
        "<p class='note'>All figures are simulated: no GPU was used. Wait: time in which a cell waited for the GPU. "
        "Slowdown: duration of a cell over its duration without other clients. Short cells have less than 10 s of "
        "GPU time, medium cells less than 60 s.</p>",
        _table(figures),
        "<h2>Waits of cells</h2><p class='note'>The curve shows the percentage of cells that waited no longer than "
        "this. A curve further left and higher is better.</p>",
        *(_plot(_waits(go, name, pooled, colours)) for name in LENGTH_CLASSES),
        "<h2>Utilisation of the devices</h2>",
        _plot(_utilisation(go, timelines, colours)),
        "<h2>Turns</h2><p class='note'>First seed, from the beginning. Coloured: the client has a device; grey: a cell "
        "of the client waits. Drag to zoom in, double-click to zoom out.</p>",
        *(_plot(_timeline(go, name, one, colours[name])) for name, one in timelines.items()),
        "</body></html>",
    ]
    return "\n".join(parts)


def _plot(figure: Any) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False))


def _table(figures: dict[str, Any]) -> str:
    names = ("cells", "count", "wait p50", "wait p95", "wait p99", "slowdown p50", "slowdown p95")
    keys = ("wait_p50", "wait_p95", "wait_p99", "slowdown_p50", "slowdown_p95")
    totals = ("throughput", "utilisation", "switches", "jain", "longest_wait", "fragmentation")
    rows = ["".join(f"<th>{name}</th>" for name in ("policy", *names))]
    sums = ["".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("policy", "moved", *totals))]
    for policy, results in figures["policies"].items():
        for length in LENGTH_CLASSES:
            one = results["cells"][length]
            values = [policy, length, f"{one['count']:,}", *(text_report.format_number(one[key]) for key in keys)]
            rows.append("".join(f"<td>{html.escape(value)}</td>" for value in values))
        values = [
            policy,
            f"{results['bytes_moved'] / 1e12:,.2f} TB",
            *(text_report.format_number(results[name]) for name in totals),
        ]
        sums.append("".join(f"<td>{html.escape(value)}</td>" for value in values))
    return "".join("<table>" + "".join(f"<tr>{row}</tr>" for row in part) + "</table>" for part in (rows, sums))


def _waits(go: Any, length: str, pooled: dict[str, Results], colours: dict[str, str]) -> Any:
    figure = go.Figure()
    for policy, results in pooled.items():
        ordered = sorted(results.waits[length])
        if not ordered:
            continue
        fractions = [index / _POINTS for index in range(_POINTS + 1)]
        x = [max(quantile(ordered, fraction) or 0.0, 1e-4) for fraction in fractions]
        line = {"color": colours[policy]}
        figure.add_scatter(x=x, y=[100 * f for f in fractions], name=policy, mode="lines", line=line)
    figure.update_layout(
        title=f"{length.capitalize()} cells",
        template="plotly_white",
        height=320,
        showlegend=True,
        xaxis={"type": "log", "title": "seconds waited (0.1 ms and less at the left edge)"},
        yaxis={"title": "% of cells", "range": [0, 101]},
    )
    return figure


def _utilisation(go: Any, timelines: dict[str, TimelineData], colours: dict[str, str]) -> Any:
    figure = go.Figure()
    for policy, one in timelines.items():
        hours = [(index + 0.5) * one.bin_seconds / 3600 for index in range(BINS)]
        used = [busy / one.bin_seconds for busy in one.busy]
        figure.add_scatter(x=hours, y=used, name=policy, mode="lines", line={"color": colours[policy]})
    figure.update_layout(
        template="plotly_white",
        height=320,
        showlegend=True,
        xaxis={"title": "simulated hours"},
        yaxis={"title": "devices at work", "rangemode": "tozero"},
    )
    return figure


def _timeline(go: Any, policy: str, timeline: TimelineData, colour: str) -> Any:
    figure = go.Figure()
    end = timeline.complete_until
    waits = [(client, since, until) for client, since, until in timeline.waits if since < end]
    turns = [(client, since, until) for client, _, since, until in timeline.turns if since < end]
    for name, intervals, shade in (("waits", waits, _WAITING), ("has a device", turns, colour)):
        figure.add_bar(
            y=[client for client, _, _ in intervals],
            base=[since / 60 for _, since, _ in intervals],
            x=[(until - since) / 60 for _, since, until in intervals],
            customdata=[until - since for _, since, until in intervals],
            hovertemplate="%{y}: %{customdata:.2f} s from minute %{base:.2f}",
            orientation="h",
            name=name,
            marker={"color": shade, "line": {"width": 0}},
        )
    clients = sorted({client for client, _, _ in (*waits, *turns)}, key=_natural_key, reverse=True)
    figure.update_layout(
        title=policy,
        template="plotly_white",
        barmode="overlay",
        height=140 + 18 * len(clients),
        xaxis={"title": "simulated minutes", "range": [0, min(end / 60, 60)]},
        yaxis={"categoryorder": "array", "categoryarray": clients, "automargin": True},
    )
    return figure


def _natural_key(name: str) -> tuple[str, int]:
    head, _, number = name.rpartition("-")
    return (head, int(number)) if number.isdecimal() else (name, 0)
