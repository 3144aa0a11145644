/** Timeline of the panel, with one lane for each client. */

import * as React from 'react';

import { Announcement } from '../../base/announcement';
import { trans } from '../../base/trans';
import { useSignal } from '../../base/useSignal';
import { ClientName } from '../../sharing/clientChip';
import { COLUMNS, LANE_HEIGHT } from './lanePaths';
import { Legend } from './legend';
import {
  VISIBLE_SPANS,
  type ILaneView,
  type ITimelineView,
  type TimelineModel
} from './timelineModel';

/** The chosen place in the timeline. */
interface ICursor {
  readonly lane: string;
  readonly at: number;
  readonly isByKeyboard: boolean;
}

/** States of clients in the last minutes, with one lane for each client. */
export function Timeline(props: {
  model: TimelineModel;
}): React.ReactElement | null {
  const { model } = props;
  const view = useSignal(model.changed, () => model.view);
  if (!view) {
    return null;
  }
  return (
    <section
      className="gpushare-Timeline"
      aria-labelledby="gpushare-timeline-title"
    >
      <div className="gpushare-Timeline-head">
        <h3 id="gpushare-timeline-title">{trans.__('Timeline')}</h3>
        <select
          aria-label={trans.__('Minutes shown')}
          value={view.span / 60}
          onChange={event => (model.span = Number(event.target.value) * 60)}
        >
          {VISIBLE_SPANS.map(minutes => (
            <option key={minutes} value={minutes}>
              {trans.__('%1 min', minutes)}
            </option>
          ))}
        </select>
        <button
          type="button"
          className={
            view.isPaused
              ? 'gpushare-Button gpushare-mod-on'
              : 'gpushare-Button'
          }
          onClick={() => (model.isPaused = !model.isPaused)}
        >
          {view.isPaused ? trans.__('Continue') : trans.__('Pause')}
        </button>
      </div>
      {view.lanes.length > 0 ? (
        <>
          <Chart model={model} view={view} />
          <Legend />
        </>
      ) : (
        <p className="gpushare-Panel-hint">
          {trans.__('There is no history yet.')}
        </p>
      )}
    </section>
  );
}

function Chart(props: {
  model: TimelineModel;
  view: ITimelineView;
}): React.ReactElement {
  const { model, view } = props;
  const [cursor, setCursor] = React.useState<ICursor | null>(null);
  const begin = view.now - view.span;

  const onPointerMove = (event: React.PointerEvent<HTMLElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top) / LANE_HEIGHT);
    const part = (event.clientX - box.left) / box.width;
    const id = view.lanes[lane]?.id;
    const at = begin + part * view.span;
    setCursor(id ? { lane: id, at, isByKeyboard: false } : null);
  };
  const onKeyDown = (event: React.KeyboardEvent) => {
    const next = move(event.key, cursor, model, view);
    if (next !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      setCursor(next);
    }
  };

  const row = view.lanes.findIndex(lane => lane.id === cursor?.lane);
  const isSeen = cursor !== null && row !== -1 && cursor.at >= begin;
  const text = isSeen ? model.describe(cursor.lane, cursor.at) : '';
  return (
    <div className="gpushare-Timeline-chart">
      <ul
        className="gpushare-Timeline-names"
        aria-label={trans.__('History of each client')}
      >
        {view.lanes.map(lane => (
          <LaneName key={lane.id} lane={lane} />
        ))}
      </ul>
      <div
        className="gpushare-Timeline-window"
        role="group"
        tabIndex={0}
        aria-label={trans.__(
          'Timeline: the up and down keys choose a client, the left and right keys choose a period'
        )}
        onPointerMove={onPointerMove}
        onPointerLeave={() => setCursor(null)}
        onKeyDown={onKeyDown}
        onBlur={() => setCursor(null)}
      >
        <Lanes {...view} />
        {isSeen && (
          <div
            className="gpushare-Timeline-cursor"
            style={{
              left: `${((cursor.at - begin) / view.span) * 100}%`,
              top: row * LANE_HEIGHT
            }}
          />
        )}
        {text !== '' && cursor && (
          <div
            className="gpushare-Timeline-tooltip"
            style={{ top: (row + 1) * LANE_HEIGHT + 2 }}
          >
            {text}
          </div>
        )}
      </div>
      <Axis span={view.span} />
      <Announcement text={cursor?.isByKeyboard ? text : ''} />
    </div>
  );
}

function LaneName({ lane }: { lane: ILaneView }): React.ReactElement {
  return (
    <li className={lane.isGone ? 'gpushare-mod-gone' : undefined}>
      <ClientName label={lane} />
      <span className="gpushare-mod-visuallyHidden">{lane.summary}</span>
    </li>
  );
}

function Lanes({ lanes }: ITimelineView): React.ReactElement {
  const height = lanes.length * LANE_HEIGHT;
  return (
    <svg
      aria-hidden="true"
      width="100%"
      height={height}
      viewBox={`0 0 ${COLUMNS} ${height}`}
      preserveAspectRatio="none"
    >
      {lanes.map(({ id, paths, starts, ends }, row) => (
        <g key={id} transform={`translate(0 ${row * LANE_HEIGHT})`}>
          {paths.map(([state, path]) => (
            <path key={state} className={`gpushare-Lane-${state}`} d={path} />
          ))}
          <path className="gpushare-Lane-starts" d={starts} />
          <path className="gpushare-Lane-ends" d={ends} />
        </g>
      ))}
    </svg>
  );
}

function Axis({ span }: { span: number }): React.ReactElement {
  const minutes = span / 60;
  const step = minutes < 5 ? 1 : minutes < 10 ? 2 : 4;
  const marks = [];
  for (let ago = step; ago < minutes; ago += step) {
    marks.push(
      <span key={ago} style={{ left: `${100 * (1 - ago / minutes)}%` }}>
        {trans.__('−%1 min', ago)}
      </span>
    );
  }
  return (
    <div className="gpushare-Timeline-axis" aria-hidden="true">
      {marks}
      <span className="gpushare-Timeline-now">{trans.__('now')}</span>
    </div>
  );
}

/** Return the place that a key leads to; undefined for other keys. */
function move(
  key: string,
  cursor: ICursor | null,
  model: TimelineModel,
  view: ITimelineView
): ICursor | null | undefined {
  const { lanes, now } = view;
  const first = { lane: lanes[0].id, at: now, isByKeyboard: true };
  const row = lanes.findIndex(lane => lane.id === cursor?.lane);
  const at = cursor && row !== -1 ? Math.min(cursor.at, now) : now;
  switch (key) {
    case 'ArrowDown':
    case 'ArrowUp': {
      const next = row + (key === 'ArrowDown' ? 1 : -1);
      const lane = lanes[row === -1 ? 0 : clamp(next, lanes.length - 1)];
      return { lane: lane.id, at, isByKeyboard: true };
    }
    case 'ArrowLeft':
    case 'ArrowRight': {
      if (row === -1) {
        return first;
      }
      const { id } = lanes[row];
      const next = model.neighbour(id, at, key === 'ArrowLeft');
      return { lane: id, at: next ?? at, isByKeyboard: true };
    }
    case 'Escape':
      return cursor ? null : undefined;
    default:
      return undefined;
  }
}

function clamp(value: number, max: number): number {
  return Math.max(0, Math.min(max, value));
}
