import type { TranslationBundle } from '@jupyterlab/translation';

import type { IConfig } from '../protocol';
import { parseSeconds } from './amounts';
import type { IField, IOption } from './form';
import { formatDuration } from './format';

/** Seconds, as the coordinator allows them. */
const SHORTEST = 0.001;
const LONGEST = 86400;

/** Seconds to choose from, as far as `max_hold` allows. */
const HOLDS = [60, 300, 600];

/** The fields of the coordinator's settings that are changed in a dialog. */
export function settingsFields(
  config: IConfig,
  trans: TranslationBundle
): IField[] {
  const seconds = (
    name: 'time_quantum' | 'idle_release',
    label: string,
    meaning: string
  ) => secondsField(name, label, config[name], meaning, trans);
  return [
    seconds(
      'time_quantum',
      trans.__('Quantum'),
      trans.__(
        'How long a turn lasts while others wait (interactive: longer if they have used more)'
      )
    ),
    choiceField('policy', trans.__('Policy'), config.policy, [
      option('interactive', trans.__('short cells overtake long ones')),
      option('fair', trans.__('by the shares in quotas')),
      option('best_effort', trans.__('equal parts for all who want some')),
      option('fixed_share', trans.__('the share, and no more')),
      option('burst_share', trans.__('the share, and idle time')),
      option('weighted', trans.__('in proportion to the shares')),
      option('fcfs', trans.__('first come, first served'))
    ]),
    seconds(
      'idle_release',
      trans.__('Idle release'),
      trans.__('Without GPU work for so long, a turn passes on')
    ),
    choiceField('sharing', trans.__('At the same time'), config.sharing, [
      option('exclusive', trans.__('never')),
      option('auto', trans.__('if it fits and is faster than turns')),
      option('packed', trans.__('whenever it fits'))
    ])
  ];
}

/** For how long to hold; "0" if it is to hold no longer. */
export function holdField(
  maxHold: number,
  holds: boolean,
  trans: TranslationBundle
): IField {
  const durations = HOLDS.filter(seconds => seconds < maxHold);
  const options = [...durations, maxHold].map(seconds => ({
    text: String(seconds),
    label:
      seconds % 60 === 0 && seconds < 3600
        ? trans.__('%1 min', seconds / 60)
        : formatDuration(seconds, trans)
  }));
  if (holds) {
    options.unshift({ text: '0', label: trans.__('No longer') });
  }
  return {
    name: 'seconds',
    label: trans.__('Hold it for'),
    // Nothing is sent but what is chosen.
    initial: '',
    options,
    hint: () =>
      trans.__(
        'Between cells too, while others wait. At most %1.',
        formatDuration(maxHold, trans)
      ),
    read: text => ({ value: Number(text) })
  };
}

function secondsField(
  name: string,
  label: string,
  now: number | string | undefined,
  meaning: string,
  trans: TranslationBundle
): IField {
  return {
    name,
    label,
    initial: now === undefined ? '' : String(now),
    hint: () =>
      trans.__('%1: %2 to %3 seconds, or auto.', meaning, SHORTEST, LONGEST),
    read: text => {
      if (text.trim().toLowerCase() === 'auto') {
        return { value: 'auto' };
      }
      const value = parseSeconds(text);
      return value !== null && value >= SHORTEST && value <= LONGEST
        ? { value }
        : {
            error: trans.__(
              'Allowed are %1 to %2 seconds, or auto.',
              SHORTEST,
              LONGEST
            )
          };
    }
  };
}

/** One that this page does not know is offered too, if it is what is set. */
function choiceField(
  name: string,
  label: string,
  now: string | undefined,
  known: ReadonlyArray<IOption>
): IField {
  const initial = now ?? '';
  const options = known.some(({ text }) => text === initial)
    ? known
    : [{ text: initial, label: initial }, ...known];
  return {
    name,
    label,
    initial,
    options,
    hint: () => '',
    read: text => ({ value: text })
  };
}

function option(text: string, meaning: string): IOption {
  return { text, label: `${text}: ${meaning}` };
}
