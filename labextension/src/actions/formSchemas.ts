/** JSON schemas of the forms for quotas and holds. */

import type { IClient, IFormSchema } from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration, formatSize } from '../base/units';

/** Choices, as far as `max_hold` allows. */
const HOLD_CHOICES_SECONDS = [60, 300, 600];

/**
 * Return the properties of `from` that are in `names`, which is a list or an
 * object.
 */
export function pick<T extends object>(
  from: T,
  names: ReadonlyArray<string> | object
): T {
  const wanted = Array.isArray(names) ? names : Object.keys(names);
  return Object.fromEntries(
    wanted.flatMap(name =>
      name in from ? [[name, from[name as keyof T]]] : []
    )
  ) as T;
}

/**
 * Return the schema of a quota, with the client's allocated bytes in a
 * description.
 */
export function withAllocated(
  schema: IFormSchema,
  { allocated }: IClient
): IFormSchema {
  const { memory } = schema.properties;
  const now = trans.__('The client has allocated %1.', formatSize(allocated));
  const description = `${memory.description} ${now}`;
  return allocated > 0
    ? {
        ...schema,
        properties: { ...schema.properties, memory: { ...memory, description } }
      }
    : schema;
}

/** Return the schema of a hold: its seconds, or 0 to end a present hold. */
export function holdSchema(maxHold: number, holds: boolean): IFormSchema {
  const durations = HOLD_CHOICES_SECONDS.filter(seconds => seconds < maxHold);
  const options = [...durations, maxHold].map(seconds => ({
    const: seconds,
    title: formatDuration(seconds)
  }));
  if (holds) {
    options.unshift({ const: 0, title: trans.__('No longer') });
  }
  const seconds = {
    title: trans.__('Hold it for'),
    description: trans.__(
      'The client keeps the GPU between cells, even while other clients wait. At most %1.',
      formatDuration(maxHold)
    ),
    type: 'number',
    default: maxHold,
    oneOf: options
  };
  return { type: 'object', properties: { seconds } };
}
