import type { ISettingsModel } from './settings';
import type { TimelineModel } from './timeline';

/** Lets the timeline show as much as it did the last time, and keeps what is chosen. */
export function keepSpan(
  timeline: TimelineModel,
  settings: ISettingsModel
): void {
  const wanted = () => settings.values.timelineMinutes * 60;
  const apply = () => {
    if (timeline.span !== wanted()) {
      timeline.span = wanted();
    }
  };
  settings.changed.connect(apply);
  timeline.changed.connect(() =>
    settings.set('timelineMinutes', timeline.span / 60)
  );
  apply();
}
