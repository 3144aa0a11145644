"""Report of the demo: a timeline for the terminal, an HTML page with the same picture, and the figures as JSON."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from ..kernel.display.history_data import STATE_SYMBOLS
from ..kernel.display.turn_history import History
from .phase_recorder import PhaseRecorder, intervals

_STATE_OF_PHASE = {"overrun": "draining"}  # of phases that a history shows as another state
_COLOURS = {"running": "#2e7d32", "draining": "#81c784", "overrun": "#c62828", "waiting": "#f9a825", "idle": "#cfd8dc"}
_LANE_HEIGHT, _LABEL_WIDTH, _WIDTH = 34, 130, 860


def timeline(recorder: PhaseRecorder, end: float, columns: int = 72) -> list[str]:
    """Return one line per client with its phases, one character per `end / columns` seconds."""
    width = max((len(label) for label in recorder.lanes), default=0)
    lines = []
    for label, lane in recorder.lanes.items():
        phases = [(0.0, "gone"), *lane]
        history = History(
            [{"at": at, "what": _STATE_OF_PHASE.get(phase, phase)} for at, phase in phases], end, min_span=0.0
        )
        lines.append(f"{label:>{width}} {''.join(STATE_SYMBOLS[state] for state in history.columns(columns))}")
    lines.append(f"{'':>{width}} 0 s{f'{end:.0f} s':>{columns - 3}}")
    lines.append(f"{'':>{width}} █ has the GPU   ░ waits for the GPU   · idle")
    return lines


def svg(recorder: PhaseRecorder, end: float) -> str:
    """Return the timeline as SVG."""
    height = _LANE_HEIGHT * len(recorder.lanes) + 46
    scale = (_WIDTH - _LABEL_WIDTH - 10) / end
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="Turns of the clients by time" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for row, (label, lane) in enumerate(recorder.lanes.items()):
        y = row * _LANE_HEIGHT + 8
        parts.append(f'<text x="{_LABEL_WIDTH - 10}" y="{y + 16}" text-anchor="end">{html.escape(label)}</text>')
        for begin, until, phase in intervals(lane, end):
            parts.append(
                f'<rect x="{_LABEL_WIDTH + begin * scale:.1f}" y="{y}" width="{max(0.5, (until - begin) * scale):.1f}" '
                f'height="{_LANE_HEIGHT - 12}" fill="{_COLOURS[phase]}"><title>{html.escape(label)}: {phase} '
                f"{begin:.2f} s to {until:.2f} s</title></rect>"
            )
    y = _LANE_HEIGHT * len(recorder.lanes) + 14
    for tick in range(0, int(end) + 1, max(1, int(end / 10))):
        parts.append(
            f'<text x="{_LABEL_WIDTH + tick * scale:.1f}" y="{y}" text-anchor="middle" fill="#555">{tick} s</text>'
        )
    for number, (phase, text) in enumerate((("running", "has the GPU"), ("waiting", "waits"), ("idle", "idle"))):
        x = _LABEL_WIDTH + number * 140
        parts.append(f'<rect x="{x}" y="{y + 10}" width="14" height="14" fill="{_COLOURS[phase]}"/>')
        parts.append(f'<text x="{x + 20}" y="{y + 22}">{text}</text>')
    return "".join([*parts, "</svg>"])


def write(directory: Path, result: dict[str, Any], recorder: PhaseRecorder, end: float) -> None:
    """Write report.json, report.html and timeline.svg."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(result, indent=2) + "\n")
    picture = svg(recorder, end)
    (directory / "timeline.svg").write_text(picture + "\n")
    rows = "".join(
        f"<tr><td>{html.escape(c['label'])}</td><td>{c['cells']}</td><td>{c['gpu_seconds']:.1f}</td>"
        f"<td>{c['wait_seconds']:.1f}</td><td>{c['turn_count']}</td></tr>"
        for c in result["clients"]
    )
    simulated = "<p><strong>The device is simulated.</strong></p>" if result["simulated"] else ""
    (directory / "report.html").write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>jupyter-gpushare demo</title>"
        "<style>body{font:16px sans-serif;max-width:900px;margin:2em auto;padding:0 1em}"
        "td,th{padding:.3em 1em;text-align:right}td:first-child,th:first-child{text-align:left}</style>"
        f"<h1>Three notebooks, one GPU</h1><p>{html.escape(result['device'])}</p>{simulated}{picture}"
        "<table><tr><th>notebook</th><th>cells</th><th>GPU seconds</th><th>waited, seconds</th><th>turns</th></tr>"
        f"{rows}</table><p>Memory in use together: {result['oversubscription']:.2f} times the device's. "
        f"Turns overlapped for {result['overlap_seconds']:g} s, by the device's own time stamps. "
        f"Wrong results: {result['wrong_results']}.</p></html>\n"
    )
