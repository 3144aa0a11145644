import * as React from 'react';

import { Announcement } from '../base/announcement';
import { gpuIcon } from '../base/icons';

/**
 * A button that shows what a kernel does, and what a screen reader is to say
 * politely when that changes.
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
    /** For the colour of the icon. */
    phase: string;
    /** What is said; undefined if something else on the page speaks. */
    announcement?: string;
  }
}
