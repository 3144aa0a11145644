/** Legend of the timeline. */

import * as React from 'react';

import { trans } from '../../base/trans';
import { LANE_STATES, type LaneState, stateText } from '../../history/lanes';
import { LANE_HEIGHT, lanePaths } from './lanePaths';

/** Shape and name of each state. */
export const Legend = React.memo(function Legend(): React.ReactElement {
  return (
    <ul className="gpushare-Legend" aria-label={trans.__('Legend')}>
      {LANE_STATES.map(state => (
        <li key={state}>
          <Sample className={`gpushare-Lane-${state}`} d={sample(state)} />
          {stateText(state)}
        </li>
      ))}
      <li>
        <Sample className="gpushare-Lane-starts" d="M4 16v-8M12 16v-4" />
        {trans.__('cell starts, ends')}
      </li>
    </ul>
  );
});

function Sample(props: React.SVGProps<SVGPathElement>): React.ReactElement {
  return (
    <svg
      aria-hidden="true"
      width="16"
      height={LANE_HEIGHT}
      viewBox={`0 0 16 ${LANE_HEIGHT}`}
    >
      <path {...props} />
    </svg>
  );
}

function sample(state: LaneState): string {
  return lanePaths([{ state, from: 0, to: 16 }])[0][1];
}
