import { nullTranslator } from '@jupyterlab/translation';

import {
  parseDuration,
  parseFraction,
  parseSize,
  readAmount,
  writeAmount
} from '../model/units';
import { holdSchema } from '../model/forms';
import { GIB } from './fakes';

const trans = nullTranslator.load('');

describe('amounts as people type them', () => {
  it.each([
    ['0.5', 0.5],
    ['.25', 0.25],
    ['50%', 0.5],
    ['12.5 %', 0.125],
    ['50', 50],
    ['-1', null],
    ['half', null],
    ['', null]
  ])('reads the fraction %p', (text, value) => {
    expect(parseFraction(text)).toBe(value);
  });

  it.each([
    ['8GiB', 8 * GIB],
    ['8 gib', 8 * GIB],
    ['8G', 8 * GIB],
    ['8GB', 8e9],
    ['1.5 KiB', 1536],
    ['1048576', 1048576],
    ['512b', 512],
    ['0.5', null],
    ['8 pounds', null],
    ['-8GiB', null],
    ['', null]
  ])('reads the size %p', (text, value) => {
    expect(parseSize(text)).toBe(value);
  });

  it.each([
    ['90', 90],
    ['0.5', 0.5],
    ['30s', 30],
    ['1.5 min', 90],
    ['1h', 3600],
    ['soon', null],
    ['-1', null]
  ])('reads the duration %p', (text, value) => {
    expect(parseDuration(text)).toBe(value);
  });
});

describe('amounts in forms', () => {
  it.each([
    ['fraction', '50%', 0.5],
    ['fraction', 'half', 'half'],
    ['size', '', null],
    ['size', '8GiB', 8 * GIB],
    ['size', ' .25 ', '.25'],
    ['size', '8 pounds', '8 pounds'],
    ['seconds', '1.5 min', 90],
    ['seconds', ' Auto', 'auto'],
    ['number', '3', 3]
  ])('reads the %s %p', (unit, text, value) => {
    expect(readAmount(text, unit)).toBe(value);
  });

  it.each([
    ['fraction', 0.125, '12.5%'],
    ['size', 8 * GIB, '8 GiB'],
    ['size', null, ''],
    ['seconds', 'auto', 'auto'],
    ['seconds', 0.5, '0.5']
  ])('writes the %s %p', (unit, value, text) => {
    expect(writeAmount(value, unit)).toBe(text);
  });
});

describe('the durations of a hold', () => {
  it.each([
    [600, false, [60, 300, 600]],
    [200, false, [60, 200]],
    [1800, true, [0, 60, 300, 600, 1800]]
  ])('are bounded by %p seconds', (longest, holds, values) => {
    const { oneOf } = holdSchema(longest, holds, trans).properties.seconds;
    const options = oneOf as unknown as { const: number }[];
    expect(options.map(option => option.const)).toEqual(values);
  });
});
