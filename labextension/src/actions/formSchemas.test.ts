/** Tests of amounts with units in forms, and of the durations of a hold. */

import { readAmount, writeAmount } from '../base/units';
import { GIB } from '../testing/fakes';
import { holdSchema } from './formSchemas';

describe('amounts in forms', () => {
  it.each([
    ['fraction', '0.5', 0.5],
    ['fraction', '.25', 0.25],
    ['fraction', '50%', 0.5],
    ['fraction', '12.5 %', 0.125],
    ['fraction', '50', 50],
    ['fraction', '-1', '-1'],
    ['fraction', 'half', 'half'],
    ['fraction', '', ''],
    ['size', '8GiB', 8 * GIB],
    ['size', '8 gib', 8 * GIB],
    ['size', '8G', 8 * GIB],
    ['size', '8GB', 8e9],
    ['size', '1.5 KiB', 1536],
    ['size', '1048576', 1048576],
    ['size', '512b', 512],
    ['size', ' .25 ', '.25'],
    ['size', '50 %', '50 %'],
    ['size', '2.5', '2.5'],
    ['size', '8 pounds', '8 pounds'],
    ['size', '-8GiB', '-8GiB'],
    ['size', '', null],
    ['seconds', '90', 90],
    ['seconds', '0.5', 0.5],
    ['seconds', '30s', 30],
    ['seconds', '1.5 min', 90],
    ['seconds', '1h', 3600],
    ['seconds', ' Auto', 'auto'],
    ['seconds', '-1', '-1'],
    ['number', '3', 3]
  ])('read the %s %p', (unit, text, value) => {
    expect(readAmount(text, unit)).toBe(value);
  });

  it.each([
    ['fraction', 0.125, '12.5%'],
    ['size', 8 * GIB, '8 GiB'],
    ['size', null, ''],
    ['seconds', 'auto', 'auto'],
    ['seconds', 0.5, '0.5']
  ])('write the %s %p', (unit, value, text) => {
    expect(writeAmount(value, unit)).toBe(text);
  });
});

describe('the durations of a hold', () => {
  it.each([
    [600, false, [60, 300, 600]],
    [200, false, [60, 200]],
    [1800, true, [0, 60, 300, 600, 1800]]
  ])('are bounded by %p seconds', (maxHold, holds, values) => {
    const { oneOf } = holdSchema(maxHold, holds).properties.seconds;
    const options = oneOf as unknown as { const: number }[];
    expect(options.map(option => option.const)).toEqual(values);
  });
});
