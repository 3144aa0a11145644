import type { TranslationBundle } from '@jupyterlab/translation';
import { ellipsesIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IRow } from '../model/rows';
import { Chip } from './chip';

/** What can be done from the list of clients. */
export interface IRowActions {
  /** Go to the client's notebook or console. */
  open(client: string): void;
  /** Offer the actions of a row; the focus comes back to the anchor. */
  showMenu(row: IRow, anchor: HTMLElement): void;
  /** Whether some action of the row exists. */
  hasMenu(row: IRow): boolean;
}

/** One client of the list. */
export function ClientRow(props: {
  row: IRow;
  actions: IRowActions;
  trans: TranslationBundle;
}): React.ReactElement {
  const { row, actions, trans } = props;
  const { named } = row;
  const facts = [row.memory, row.quota, row.limit].filter(text => text !== '');
  return (
    <li
      className={named.isOwn ? 'gpushare-Row gpushare-mod-own' : 'gpushare-Row'}
      data-phase={row.phase}
    >
      <div className="gpushare-Row-head">
        <Chip named={named} />
        {row.canOpen ? (
          <button
            type="button"
            className="gpushare-Row-name gpushare-mod-link"
            title={trans.__('Go to %1', named.name)}
            onClick={() => actions.open(named.id)}
          >
            {named.name}
          </button>
        ) : (
          <span className="gpushare-Row-name" title={named.name}>
            {named.name}
          </span>
        )}
        {actions.hasMenu(row) && (
          <button
            type="button"
            className="gpushare-Row-menu"
            aria-haspopup="menu"
            aria-label={trans.__('Actions for %1', named.name)}
            title={trans.__('Actions for %1', named.name)}
            onClick={event => actions.showMenu(row, event.currentTarget)}
          >
            <ellipsesIcon.react tag="span" className="gpushare-Row-menuIcon" />
          </button>
        )}
      </div>
      <div className="gpushare-Row-state">{row.state}</div>
      <div className="gpushare-Row-facts">{facts.join(' · ')}</div>
      {row.notes.length > 0 && (
        <ul className="gpushare-Row-notes">
          {row.notes.map(note => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
    </li>
  );
}
