/**
 * `next`, with every part that equals that of `last` replaced by it, so that
 * what is drawn from these parts need not be drawn again.
 */
export function reuse<T>(last: T, next: T): T {
  if (Array.isArray(last) && Array.isArray(next)) {
    const merged = next.map((item, i) => reuse(matching(last, item, i), item));
    const isSame =
      merged.length === last.length && merged.every((m, i) => m === last[i]);
    return isSame ? last : (merged as T);
  }
  if (isRecord(last) && isRecord(next)) {
    const merged: Record<string, unknown> = {};
    let isSame = true;
    for (const key of Object.keys(next)) {
      merged[key] = reuse(last[key], next[key]);
      isSame &&= merged[key] === last[key];
    }
    return isSame && Object.keys(last).length === Object.keys(next).length
      ? last
      : (merged as T);
  }
  return next;
}

/** The item that stood for the same before; most keep their places. */
function matching(last: unknown[], item: unknown, index: number): unknown {
  const id = idOf(item);
  return id === undefined || idOf(last[index]) === id
    ? last[index]
    : last.find(other => idOf(other) === id);
}

function idOf(item: unknown): unknown {
  if (!isRecord(item)) {
    return undefined;
  }
  const { named, uuid, key } = item as Record<string, unknown>;
  return isRecord(named) ? named.id : (uuid ?? key);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
