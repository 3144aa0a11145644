import type { TranslationBundle } from '@jupyterlab/translation';
import { JSONExt, type ReadonlyJSONObject } from '@lumino/coreutils';
import * as React from 'react';

import type { IPanelView, ISettingsView, PanelModel } from '../model/panel';
import type { IRow } from '../model/rows';
import { ClientRow, type IRowActions } from './clientrow';
import { DeviceCard } from './devicecard';
import { Timeline } from './timeline';
import { useSignal } from './usesignal';

/** What can be done from the panel. */
export interface IPanelActions extends IRowActions {
  /** Change the coordinator's settings; undefined while that can't be done. */
  readonly changeSettings?: () => void;
}

/** Rows and cards are drawn again only if they say something else. */
const Row = React.memo(
  ClientRow,
  (a, b) => a.actions === b.actions && isSame(a.row, b.row)
);
const Card = React.memo(DeviceCard, (a, b) => isSame(a.device, b.device));

function isSame(a: object, b: object): boolean {
  return JSONExt.deepEqual(a as ReadonlyJSONObject, b as ReadonlyJSONObject);
}

/** All of the side panel. */
export function PanelBody(props: {
  model: PanelModel;
  actions: IPanelActions;
  trans: TranslationBundle;
}): React.ReactElement {
  const { model, actions, trans } = props;
  const view = useSignal(model.changed, () => model.view);
  return (
    <>
      <h2 className="gpushare-Panel-title">{trans.__('GPU sharing')}</h2>
      <Notice view={view} trans={trans} />
      {(view.kind === 'ready' || view.kind === 'away') && (
        <Content view={view} model={model} actions={actions} trans={trans} />
      )}
    </>
  );
}

function Content(props: {
  view: IPanelView;
  model: PanelModel;
  actions: IPanelActions;
  trans: TranslationBundle;
}): React.ReactElement {
  const { view, model, actions, trans } = props;
  const isKnown = view.devices.length > 0;
  return (
    <div className="gpushare-Panel-content" data-dimmed={view.kind === 'away'}>
      {isKnown && (
        <section aria-labelledby="gpushare-devices-title">
          <h3 id="gpushare-devices-title">
            {trans._n('Device', 'Devices', view.devices.length)}
          </h3>
          <ul className="gpushare-Panel-list">
            {view.devices.map(device => (
              <Card key={device.uuid} device={device} trans={trans} />
            ))}
          </ul>
        </section>
      )}
      <Rows
        id="gpushare-own-title"
        title={trans.__('Yours')}
        rows={view.own}
        actions={actions}
        trans={trans}
      />
      <Rows
        id="gpushare-others-title"
        title={trans.__('Others')}
        rows={view.others}
        actions={actions}
        trans={trans}
      />
      {(view.own.length > 0 || view.others.length > 0) && (
        <Timeline model={model.timeline} trans={trans} />
      )}
      {view.settings && (
        <Settings
          settings={view.settings}
          change={actions.changeSettings}
          trans={trans}
        />
      )}
    </div>
  );
}

function Rows(props: {
  id: string;
  title: string;
  rows: ReadonlyArray<IRow>;
  actions: IPanelActions;
  trans: TranslationBundle;
}): React.ReactElement | null {
  const { id, title, rows, actions, trans } = props;
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
          <Row key={row.named.id} row={row} actions={actions} trans={trans} />
        ))}
      </ul>
    </section>
  );
}

function Settings(props: {
  settings: ISettingsView;
  change?: () => void;
  trans: TranslationBundle;
}): React.ReactElement {
  const { settings, change, trans } = props;
  return (
    <section aria-labelledby="gpushare-settings-title">
      <h3 id="gpushare-settings-title">{trans.__('How turns are given')}</h3>
      <dl className="gpushare-Panel-settings">
        <dt>{trans.__('Policy')}</dt>
        <dd>{settings.policy}</dd>
        <dt>{trans.__('Quantum')}</dt>
        <dd>{settings.quantum}</dd>
      </dl>
      {settings.isAdmin && change && (
        <button type="button" className="gpushare-Button" onClick={change}>
          {trans.__('Change…')}
        </button>
      )}
    </section>
  );
}

/** Why there is nothing to see, or not all, and what to do about it. */
function Notice(props: {
  view: IPanelView;
  trans: TranslationBundle;
}): React.ReactElement {
  const { view, trans } = props;
  return (
    <div role="status">
      {notice(view, trans).map((text, i) => (
        <p
          key={text}
          className={
            view.kind === 'away' && i === 0
              ? 'gpushare-Panel-away'
              : 'gpushare-Panel-hint'
          }
        >
          {text}
        </p>
      ))}
    </div>
  );
}

function notice(view: IPanelView, trans: TranslationBundle): string[] {
  const howTo = trans.__(
    'To share the GPU, choose the kernel “Python 3 (shared GPU)” for a notebook, in the launcher or with Kernel → Change Kernel.'
  );
  switch (view.kind) {
    case 'connecting':
      return [trans.__('Asking the server…')];
    case 'missing':
      return [
        trans.__('This Jupyter server has no GPU sharing.'),
        trans.__(
          'Install jupyter-gpushare in the server’s environment, then start the server again.'
        )
      ];
    case 'stopped':
      return [trans.__('Nobody shares the GPU at the moment.'), howTo];
    case 'away': {
      const isKnown = view.devices.length > 0;
      return [
        trans.__('The sharing service is away. Work on the GPU goes on.'),
        view.reason,
        isKnown ? trans.__('Below is what was known last.') : ''
      ].filter(text => text !== '');
    }
    case 'ready':
      if (view.devices.length === 0) {
        return [trans.__('There is no GPU to share on this machine.')];
      }
      return view.own.length === 0 && view.others.length === 0
        ? [trans.__('Nobody shares the GPU yet.'), howTo]
        : view.own.length === 0
          ? [howTo]
          : [];
  }
}
