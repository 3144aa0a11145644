/**
 * Content of the side panel: devices, clients, timeline, settings and outages.
 */

import type { CommandRegistry } from '@lumino/commands';
import { JSONExt, type ReadonlyJSONObject } from '@lumino/coreutils';
import * as React from 'react';

import { CommandIDs } from '../base/commands';
import { trans } from '../base/trans';
import { useSignal } from '../base/useSignal';
import { placeText, type IStartView } from '../sharing/waitingStart';
import { Timeline } from './timeline/timeline';
import { ClientRow } from './clientRow';
import type { IClientRowView } from './clientRowView';
import { DeviceCard } from './deviceCard';
import type { PanelModel } from './panelModel';
import type { IHostView, IPanelView, ISettingsView } from './panelView';

/** Rows and cards that render again only after a change of their content. */
const Row = React.memo(
  ClientRow,
  (a, b) => a.hasMenu === b.hasMenu && isSame(a.row, b.row)
);
const Card = React.memo(DeviceCard, (a, b) => isSame(a.device, b.device));

function isSame(a: object, b: object): boolean {
  return JSONExt.deepEqual(a as ReadonlyJSONObject, b as ReadonlyJSONObject);
}

export function PanelContent(props: {
  model: PanelModel;
  commands: CommandRegistry;
}): React.ReactElement {
  const { model, commands } = props;
  const view = useSignal(model.changed, () => model.view);
  return (
    <>
      <h2 className="gpushare-Panel-title">{trans.__('GPU sharing')}</h2>
      <Notice view={view} />
      {(view.kind === 'ready' || view.kind === 'unavailable') && (
        <Sections view={view} model={model} commands={commands} />
      )}
    </>
  );
}

function Sections(props: {
  view: IPanelView;
  model: PanelModel;
  commands: CommandRegistry;
}): React.ReactElement {
  const { view, model, commands } = props;
  return (
    <div
      className="gpushare-Panel-content"
      data-dimmed={view.kind === 'unavailable'}
    >
      {view.hosts.map(host => (
        <Host key={host.node} host={host} />
      ))}
      <Starts starts={view.starts} commands={commands} />
      <Rows
        id="gpushare-own-title"
        title={trans.__('Yours')}
        rows={view.own}
        commands={commands}
      />
      <Rows
        id="gpushare-others-title"
        title={trans.__('Others')}
        rows={view.others}
        commands={commands}
      />
      {(view.own.length > 0 || view.others.length > 0) && (
        <Timeline model={model.timeline} />
      )}
      {view.settings && (
        <Settings settings={view.settings} commands={commands} />
      )}
    </div>
  );
}

/** Devices of the server's host, or of a node. */
function Host({ host }: { host: IHostView }): React.ReactElement {
  const { node, devices, message } = host;
  const id = `gpushare-devices-title-${node}`;
  return (
    <section aria-labelledby={id}>
      <h3 id={id}>
        {node === ''
          ? trans._n('Device', 'Devices', devices.length)
          : trans.__('Node')}{' '}
        <span className="gpushare-Panel-node">{node}</span>
      </h3>
      {message !== '' && <p className="gpushare-Panel-hint">{message}</p>}
      <ul className="gpushare-Panel-list">
        {devices.map(device => (
          <Card key={device.uuid} device={device} />
        ))}
      </ul>
    </section>
  );
}

/** Starts of kernels that wait for a node with room. */
function Starts(props: {
  starts: ReadonlyArray<IStartView>;
  commands: CommandRegistry;
}): React.ReactElement | null {
  const { starts, commands } = props;
  const id = 'gpushare-starts-title';
  return starts.length === 0 ? null : (
    <section aria-labelledby={id}>
      <h3 id={id}>
        {trans.__('Waiting for a node')}{' '}
        <span className="gpushare-Panel-count">({starts.length})</span>
      </h3>
      <ul className="gpushare-Panel-list">
        {starts.map(view => (
          <li key={view.start.kernel} className="gpushare-Panel-start">
            <span title={view.start.message}>
              {view.start.label}: {placeText(view)}
            </span>
            {commands.hasCommand(CommandIDs.cancelStart) && (
              <button
                type="button"
                className="gpushare-Button"
                aria-label={trans.__(
                  'Cancel the start of %1',
                  view.start.label
                )}
                onClick={() =>
                  void commands.execute(CommandIDs.cancelStart, {
                    kernel: view.start.kernel
                  })
                }
              >
                {trans.__('Cancel')}
              </button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Rows(props: {
  id: string;
  title: string;
  rows: ReadonlyArray<IClientRowView>;
  commands: CommandRegistry;
}): React.ReactElement | null {
  const { id, title, rows, commands } = props;
  if (rows.length === 0) {
    return null;
  }
  return (
    <section aria-labelledby={id}>
      <h3 id={id}>
        {title} <span className="gpushare-Panel-count">({rows.length})</span>
      </h3>
      <ul className="gpushare-Panel-list">
        {rows.map(row => (
          <Row
            key={row.label.id}
            row={row}
            commands={commands}
            hasMenu={row.actions.some(id => commands.hasCommand(id))}
          />
        ))}
      </ul>
    </section>
  );
}

function Settings(props: {
  settings: ISettingsView;
  commands: CommandRegistry;
}): React.ReactElement {
  const { settings, commands } = props;
  return (
    <section aria-labelledby="gpushare-settings-title">
      <h3 id="gpushare-settings-title">{trans.__('Scheduling')}</h3>
      <dl className="gpushare-Panel-settings">
        <dt>{trans.__('Policy')}</dt>
        <dd>{settings.policy}</dd>
        <dt>{trans.__('Time quantum')}</dt>
        <dd>{settings.quantum}</dd>
      </dl>
      {settings.isAdmin && commands.hasCommand(CommandIDs.changeSettings) && (
        <button
          type="button"
          className="gpushare-Button"
          onClick={() => void commands.execute(CommandIDs.changeSettings)}
        >
          {trans.__('Change…')}
        </button>
      )}
    </section>
  );
}

/** Reason why the panel lacks content, with advice for the user. */
function Notice({ view }: { view: IPanelView }): React.ReactElement {
  return (
    <div role="status">
      {notice(view).map((text, i) => (
        <p
          key={text}
          className={
            view.kind === 'unavailable' && i === 0
              ? 'gpushare-Panel-unavailable'
              : 'gpushare-Panel-hint'
          }
        >
          {text}
        </p>
      ))}
    </div>
  );
}

function notice(view: IPanelView): string[] {
  const howTo = trans.__(
    'To share the GPU, choose the kernel “Python 3 (shared GPU)” for a notebook, in the launcher or with Kernel → Change Kernel.'
  );
  switch (view.kind) {
    case 'connecting':
      return [trans.__('Waiting for the server…')];
    case 'missing':
      return [
        trans.__('This Jupyter server has no GPU sharing.'),
        trans.__(
          'Install jupyter-gpushare in the server’s environment, then start the server again.'
        )
      ];
    case 'stopped':
      return [trans.__('No kernel shares the GPU at the moment.'), howTo];
    case 'unavailable': {
      const isKnown = view.hosts.length > 0;
      return [
        trans.__('The sharing service is unavailable. GPU work continues.'),
        view.reason,
        isKnown ? trans.__('The view below shows the last known state.') : ''
      ].filter(text => text !== '');
    }
    case 'ready':
      if (view.starts.length > 0) {
        return [];
      }
      if (view.hosts.length === 0) {
        return [trans.__('There is no GPU to share on this machine.')];
      }
      return view.own.length === 0 && view.others.length === 0
        ? [trans.__('No kernel shares the GPU yet.'), howTo]
        : view.own.length === 0
          ? [howTo]
          : [];
  }
}
