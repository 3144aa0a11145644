/**
 * What people type for sizes, fractions and durations, as `wire/text.py` reads
 * it: the dialogs accept no more and no less than the server.
 */

const BINARY = /^(k|m|g|t)(ib)?$/;
const DECIMAL = /^(k|m|g|t)b$/;
const PREFIXES = ['', 'k', 'm', 'g', 't'];

/** 0.5 from "0.5", "50%" or "50 %"; null if it is no number. */
export function parseFraction(text: string): number | null {
  const match = /^([0-9]+\.?[0-9]*|\.[0-9]+)\s*(%?)$/.exec(text.trim());
  return match ? Number(match[1]) / (match[2] ? 100 : 1) : null;
}

/** Whether a memory is meant as a part of the device: "0.5", "50%", "1.0"; "1" is a size. */
export function isFraction(text: string): boolean {
  return /^([0-9]+(\.[0-9]*)?%|[01]?\.[0-9]+)$/.test(text.trim());
}

/** Bytes from "8GiB", "8 G" (both of 1024s), "8GB" (of 1000s) or "1048576". */
export function parseSize(text: string): number | null {
  const match = /^([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)$/.exec(
    text.trim().toLowerCase()
  );
  const base = match && sizeBase(match[2]);
  if (!match || !base) {
    return null;
  }
  const bytes = Number(match[1]) * base ** PREFIXES.indexOf(prefix(match[2]));
  return prefix(match[2]) === '' && !Number.isInteger(bytes)
    ? null
    : Math.floor(bytes);
}

/** Seconds from "90", "90s", "1.5 min" or "1h". */
export function parseSeconds(text: string): number | null {
  const match = /^([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)$/.exec(
    text.trim().toLowerCase()
  );
  const unit = match && SECONDS[match[2]];
  return match && unit ? Number(match[1]) * unit : null;
}

/** "50%", "12.5%"; what {@link parseFraction} reads. */
export function formatFraction(fraction: number): string {
  return `${Number((fraction * 100).toFixed(2))}%`;
}

const SECONDS: Readonly<Record<string, number>> = {
  '': 1,
  ...units(1, 's', 'sec', 'second', 'seconds'),
  ...units(60, 'm', 'min', 'minute', 'minutes'),
  ...units(3600, 'h', 'hour', 'hours')
};

function units(seconds: number, ...names: string[]): Record<string, number> {
  return Object.fromEntries(names.map(name => [name, seconds]));
}

function prefix(unit: string): string {
  return unit === 'b' ? '' : unit.charAt(0);
}

function sizeBase(unit: string): number | null {
  if (unit === '' || unit === 'b' || BINARY.test(unit)) {
    return 1024;
  }
  return DECIMAL.test(unit) ? 1000 : null;
}
