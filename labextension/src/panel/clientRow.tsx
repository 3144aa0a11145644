/** Row of a client in the panel's list. */

import { ellipsesIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { CommandIDs } from '../base/commands';
import { trans } from '../base/trans';
import { ClientChip } from '../sharing/clientChip';
import { openRowMenu } from '../actions/actionMenu';
import type { IClientRowView } from './clientRowView';

export function ClientRow(props: {
  row: IClientRowView;
  commands: CommandRegistry;
  hasMenu: boolean;
}): React.ReactElement {
  const { row, commands, hasMenu } = props;
  const { label } = row;
  const place = row.node && trans.__('on %1', row.node);
  const facts = [place, row.memory, row.quota, row.limit].filter(Boolean);
  return (
    <li
      className={label.isOwn ? 'gpushare-Row gpushare-mod-own' : 'gpushare-Row'}
      data-phase={row.phase}
    >
      <div className="gpushare-Row-head">
        <ClientChip label={label} />
        {row.canOpen ? (
          <button
            type="button"
            className="gpushare-Row-name gpushare-mod-link"
            title={trans.__('Go to %1', label.name)}
            onClick={() =>
              void commands.execute(CommandIDs.openDocument, {
                client: label.id
              })
            }
          >
            {label.name}
          </button>
        ) : (
          <span className="gpushare-Row-name" title={label.name}>
            {label.name}
          </span>
        )}
        {hasMenu && (
          <button
            type="button"
            className="gpushare-Row-menu"
            aria-haspopup="menu"
            aria-label={trans.__('Actions for %1', label.name)}
            title={trans.__('Actions for %1', label.name)}
            onClick={event => openRowMenu(commands, row, event.currentTarget)}
          >
            <ellipsesIcon.react tag="span" className="gpushare-Row-menuIcon" />
          </button>
        )}
      </div>
      <div className="gpushare-Row-state">{row.state}</div>
      {row.progress !== '' && (
        <div className="gpushare-Row-progress">
          <span>{row.progress}</span>
          {row.fractionDone !== null && (
            <progress value={row.fractionDone} aria-label={row.progress} />
          )}
        </div>
      )}
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
