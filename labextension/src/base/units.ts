/** Sizes, durations and fractions as users read and write them. */
import { trans } from './trans';

const BINARY = /^(k|m|g|t)(ib)?$/;
const DECIMAL = /^(k|m|g|t)b$/;
const PREFIXES = ['', 'k', 'm', 'g', 't'];

/** Return the value of a text, or the text if it is no number of the unit. */
export function readAmount(text: string, unit: string): string | number | null {
  const plain = text.trim();
  if (unit === 'size') {
    return plain === ''
      ? null
      : isFraction(plain)
        ? plain
        : (parseSize(plain) ?? plain);
  }
  const read =
    { fraction: parseFraction, seconds: parseDuration }[unit] ?? Number;
  return read(plain) ?? plain.toLowerCase();
}

/** Format a value such that {@link readAmount} reads the text. */
export function writeAmount(value: unknown, unit: string): string {
  if (typeof value === 'number' && unit !== 'seconds') {
    return unit === 'size' ? formatSize(value) : formatFraction(value);
  }
  return value === null || value === undefined ? '' : String(value);
}

/** Return 0.5 for "0.5", "50%" and "50 %", and null for other texts. */
function parseFraction(text: string): number | null {
  const match = /^([0-9]+\.?[0-9]*|\.[0-9]+)\s*(%?)$/.exec(text.trim());
  return match ? Number(match[1]) / (match[2] ? 100 : 1) : null;
}

/**
 * Return whether a memory size is a fraction of the device, such as "0.5",
 * "50%", "50 %" and "1.0". The text "1" is a size.
 */
function isFraction(text: string): boolean {
  return /^([0-9]+(\.[0-9]*)?\s*%|[01]?\.[0-9]+)$/.test(text.trim());
}

/**
 * Return the bytes of "8GiB" or "8 G" (base 1024), "8GB" (base 1000) and
 * "1048576".
 */
function parseSize(text: string): number | null {
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

/** Return the seconds of "90", "90s", "1.5 min" and "1h". */
function parseDuration(text: string): number | null {
  const match = /^([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)$/.exec(
    text.trim().toLowerCase()
  );
  const unit = match && SECONDS[match[2]];
  return match && unit ? Number(match[1]) * unit : null;
}

/** Format bytes in binary units, such as "512 B", "1.5 KiB" and "535.1 MiB". */
export function formatSize(bytes: number, rounding = Math.round): string {
  let unit = 0;
  let amount = rounding(bytes);
  while (Math.abs(amount) >= 1024 && unit < PREFIXES.length - 1) {
    unit++;
    const inUnits = bytes / 1024 ** unit;
    const parts = Math.abs(inUnits) >= 10 ? 10 : 100;
    amount = rounding(inUnits * parts) / parts;
  }
  return `${amount} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
}

/**
 * Format seconds, rounded up to whole seconds, such as "12 s", "1 min 15 s" and
 * "2 h 1 min".
 */
export function formatDuration(seconds: number): string {
  const whole = Math.ceil(seconds);
  const minutes = Math.floor(whole / 60);
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  if (whole < 3600) {
    return whole % 60
      ? trans.__('%1 min %2 s', minutes, whole % 60)
      : trans.__('%1 min', minutes);
  }
  return minutes % 60
    ? trans.__('%1 h %2 min', Math.floor(minutes / 60), minutes % 60)
    : trans.__('%1 h', minutes / 60);
}

/**
 * Return the seconds after which the text of the remaining `seconds` changes.
 */
export function untilNextSecond(seconds: number): number {
  return seconds - Math.ceil(seconds) + 1;
}

/**
 * Format elapsed seconds, from one minute on in whole minutes, such as "59 s"
 * and "1 h 59 min".
 */
export function formatElapsed(seconds: number): string {
  const step = seconds < 60 ? 1 : 60;
  return formatDuration(Math.floor(seconds / step) * step);
}

/** Format a fraction such as "12.5%", which {@link parseFraction} reads. */
function formatFraction(fraction: number): string {
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
