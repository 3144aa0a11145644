/** Button with the state of a kernel, for the status bar and the toolbar. */

import * as React from 'react';

import { Announcement } from '../base/announcement';
import { gpuIcon } from '../base/icons';

/**
 * A button that shows the state of a kernel, with an announcement for screen
 * readers.
 */
export function StateButton(props: StateButton.IProps): React.ReactElement {
  const { announcement, children, className, phase, ...rest } = props;
  return (
    <>
      <button
        type="button"
        className={`gpushare-StateButton ${className}`}
        data-phase={phase}
        {...rest}
      >
        <gpuIcon.react tag="span" className="gpushare-StateButton-icon" />
        {children}
      </button>
      {announcement !== undefined && <Announcement text={announcement} />}
    </>
  );
}

export namespace StateButton {
  export interface IProps extends React.ButtonHTMLAttributes<HTMLButtonElement> {
    className: string;
    /** Phase, which sets the colour of the icon. */
    phase: string;
    /**
     * Announcement; undefined if another part of the page announces the state.
     */
    announcement?: string;
  }
}
