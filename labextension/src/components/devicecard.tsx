import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IDeviceView, IUse } from '../model/devices';
import { Name } from './chip';
import { MemoryBar } from './memorybar';

/** So many of a queue are shown at once. */
const NEXT = 4;

/** One device: what it is, who has it, who waits, and where its memory is. */
export function DeviceCard(props: {
  device: IDeviceView;
  trans: TranslationBundle;
}): React.ReactElement {
  const { device, trans } = props;
  return (
    <li className="gpushare-Device" data-failed={device.failed !== ''}>
      <div className="gpushare-Device-head">
        <h4 className="gpushare-Device-name" title={device.uuid}>
          {device.name}
        </h4>
        {device.isSimulated && (
          <span className="gpushare-Tag">{trans.__('simulated')}</span>
        )}
      </div>
      {device.failed !== '' && (
        <p className="gpushare-Device-failed">
          {trans.__('Out of use: %1', device.failed)}
        </p>
      )}
      {device.utilisation !== null && (
        <div className="gpushare-Device-busy">
          <div className="gpushare-Device-meter" aria-hidden="true">
            <div
              style={{
                transform: `scaleX(${Math.min(1, device.utilisation)})`
              }}
            />
          </div>
          {device.utilisationText}
        </div>
      )}
      <MemoryBar memory={device.memory} trans={trans} />
      <dl className="gpushare-Device-uses">
        <dt>{trans.__('Running')}</dt>
        <dd>
          {device.running.length > 0 ? (
            <ul className="gpushare-Uses">{items(device.running)}</ul>
          ) : (
            trans.__('nobody')
          )}
        </dd>
        <dt>{trans.__('Queue')}</dt>
        <dd>
          {device.queue.length > 0 ? (
            <Queue queue={device.queue} trans={trans} />
          ) : (
            trans.__('empty')
          )}
        </dd>
        {device.lockedBy !== '' && (
          <>
            <dt
              title={trans.__(
                'Another session has this GPU’s lock, and clients here wait for it.'
              )}
            >
              {trans.__('Locked')}
            </dt>
            <dd>{device.lockedBy}</dd>
          </>
        )}
        {device.outside !== '' && (
          <>
            <dt
              title={trans.__(
                'Programs that use this GPU without sharing it: they take memory and time from those who do.'
              )}
            >
              {trans.__('Not shared')}
            </dt>
            <dd>{device.outside}</dd>
          </>
        )}
      </dl>
    </li>
  );
}

/** The next ones; a long queue's end only while it is open. */
function Queue(props: {
  queue: ReadonlyArray<IUse>;
  trans: TranslationBundle;
}): React.ReactElement {
  const { queue, trans } = props;
  const [isOpen, setIsOpen] = React.useState(false);
  const more = queue.length - NEXT;
  return (
    <>
      <ol className="gpushare-Uses">{items(queue.slice(0, NEXT))}</ol>
      {more > 0 && (
        <details onToggle={event => setIsOpen(event.currentTarget.open)}>
          <summary>{trans._n('%1 more', '%1 more', more)}</summary>
          {isOpen && (
            <ol className="gpushare-Uses" start={NEXT + 1}>
              {items(queue.slice(NEXT))}
            </ol>
          )}
        </details>
      )}
    </>
  );
}

function items(uses: ReadonlyArray<IUse>): React.ReactElement[] {
  return uses.map(use => <Use key={use.named.id} use={use} />);
}

function Use(props: { use: IUse }): React.ReactElement {
  const { named, time } = props.use;
  return (
    <li>
      <span className="gpushare-Use">
        <Name named={named} />
        <span className="gpushare-Use-time">{time}</span>
      </span>
    </li>
  );
}
