/** Card of a device in the panel, with running clients, queue and memory. */

import * as React from 'react';

import { trans } from '../base/trans';
import { ClientName } from '../sharing/clientChip';
import type { IDeviceView, IClientOnDevice } from './deviceView';
import { MemoryBar } from './memoryBar';

/** Number of waiting clients that a closed queue shows. */
const MAX_SHOWN = 4;

/** One device, with its running clients, queue and memory. */
export function DeviceCard(props: { device: IDeviceView }): React.ReactElement {
  const { device } = props;
  return (
    <li className="gpushare-Device" data-failed={device.failureReason !== ''}>
      <div className="gpushare-Device-head">
        <h4 className="gpushare-Device-name" title={device.title}>
          {device.name}
        </h4>
        {device.isSimulated && (
          <span className="gpushare-Tag">{trans.__('simulated')}</span>
        )}
      </div>
      {device.failureReason !== '' && (
        <p className="gpushare-Device-failed">
          {trans.__('Out of use: %1', device.failureReason)}
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
      <MemoryBar memory={device.memory} />
      <dl className="gpushare-Device-uses">
        <dt>{trans.__('Running')}</dt>
        <dd>
          {device.running.length > 0 ? (
            <ul className="gpushare-Uses">{items(device.running)}</ul>
          ) : (
            trans.__('no client')
          )}
        </dd>
        <dt>{trans.__('Queue')}</dt>
        <dd>
          {device.queue.length > 0 ? (
            <Queue queue={device.queue} />
          ) : (
            trans.__('empty')
          )}
        </dd>
        <Note
          term={trans.__('Settings')}
          title={trans.__(
            'Own settings of this GPU. All other settings are those of the host.'
          )}
          text={device.ownSettings}
        />
        <Note
          term={trans.__('Locked')}
          title={trans.__(
            'A process of another coordinator holds the lock of this GPU while clients here wait.'
          )}
          text={device.lockedBy}
        />
        <Note
          term={trans.__('Not shared')}
          title={trans.__(
            'Programs that use this GPU without sharing. Such programs take memory and time from the clients.'
          )}
          text={device.foreignProcesses}
        />
      </dl>
    </li>
  );
}

/** A term with a text; null without a text. */
function Note(props: {
  term: string;
  title: string;
  text: string;
}): React.ReactElement | null {
  return props.text === '' ? null : (
    <>
      <dt title={props.title}>{props.term}</dt>
      <dd>{props.text}</dd>
    </>
  );
}

/** The queue, whose end exists in the page only while the queue is open. */
function Queue({
  queue
}: {
  queue: ReadonlyArray<IClientOnDevice>;
}): React.ReactElement {
  const [isOpen, setIsOpen] = React.useState(false);
  const more = queue.length - MAX_SHOWN;
  return (
    <>
      <ol className="gpushare-Uses">{items(queue.slice(0, MAX_SHOWN))}</ol>
      {more > 0 && (
        <details onToggle={event => setIsOpen(event.currentTarget.open)}>
          <summary>{trans._n('%1 more', '%1 more', more)}</summary>
          {isOpen && (
            <ol className="gpushare-Uses" start={MAX_SHOWN + 1}>
              {items(queue.slice(MAX_SHOWN))}
            </ol>
          )}
        </details>
      )}
    </>
  );
}

function items(uses: ReadonlyArray<IClientOnDevice>): React.ReactElement[] {
  return uses.map(use => <Use key={use.label.id} {...use} />);
}

function Use({ label, time }: IClientOnDevice): React.ReactElement {
  return (
    <li>
      <span className="gpushare-Use">
        <ClientName label={label} />
        <span className="gpushare-Use-time">{time}</span>
      </span>
    </li>
  );
}
