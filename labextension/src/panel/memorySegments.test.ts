/** Tests of the lengths and places of segments in the memory bar. */

import { type ISegment, segmentAt, memoryIntervals } from './memorySegments';

function segment(key: string, bytes: number): ISegment {
  return { key, bytes, label: null, text: key };
}

describe('the memory bar', () => {
  it('gives each segment its fraction of the device, or of the end beyond', () => {
    const [card, beyond] = memoryIntervals({
      resident: [segment('a', 20), segment('b', 30)],
      free: 50,
      evicted: [segment('a', 5), segment('c', 15)],
      text: ''
    });
    const places = card.segments.map(({ from, to }) => [from, to]);
    expect(places).toEqual([
      [0, 0.2],
      [0.2, 0.5]
    ]);
    expect([card.length, beyond.length]).toEqual([100, 20]);
    expect(segmentAt(card, 0.3)?.segment.key).toBe('b');
    expect(segmentAt(card, 0.6)).toBeUndefined();
    expect(segmentAt(beyond, 0.3)?.segment.key).toBe('c');
  });

  it('shows the smallest segment, and never exceeds the length of the bar', () => {
    const many = Array.from({ length: 200 }, (_, i) => segment(`${i}`, 1));
    const full = { resident: many, free: 0, evicted: [], text: '' };
    expect(memoryIntervals(full)[0].segments[199].to).toBeCloseTo(1);
    const tiny = { ...full, resident: [segment('a', 1)], free: 1e9 };
    const [{ segments }] = memoryIntervals(tiny);
    expect(segments[0].to).toBeGreaterThan(0.01);
    expect(memoryIntervals({ ...full, resident: [] })[0].segments).toEqual([]);
  });
});
