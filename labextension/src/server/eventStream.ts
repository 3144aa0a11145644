/** Stream of the server's messages by a WebSocket, or by polling with GET while no socket gives messages. */

import { Signal } from '@lumino/signaling';

import { Disposable } from '../base/disposable';
import {
  NO_EXTENSION,
  parseMessage,
  type EventMessage
} from '../base/protocol';
import type { ApiError, IServerAccess } from './api';

/** Shortest and longest time between two attempts. */
const MIN_DELAY_MS = 1000;
const MAX_DELAY_MS = 30000;
const FIRST_MESSAGE_TIMEOUT_MS = 10000;

/**
 * Return the milliseconds before the next attempt.
 *
 * The time doubles from 1 s to 30 s. Jitter keeps the pages of a restarted
 * server from reconnecting at the same moment.
 *
 * @param failures - failed attempts in a row
 * @param random - uniform in [0, 1)
 */
export function backoff(failures: number, random: number): number {
  const ceiling = Math.min(MAX_DELAY_MS, MIN_DELAY_MS * 2 ** failures);
  return Math.max(MIN_DELAY_MS, ceiling * (0.5 + random / 2));
}

/**
 * Lasting stream of the server's messages.
 *
 * The stream reconnects by itself. Where no socket gives messages, the stream
 * polls by GET and keeps trying the socket. While the page is hidden, the
 * stream has no connection and no timer.
 */
export class EventStream extends Disposable {
  constructor(private readonly _options: IServerAccess) {
    super();
    _options.visibility.changed.connect(this._onVisibility, this);
  }

  /** Seconds between two requests without a socket. */
  pollInterval = 5;

  /**
   * Emitted for each message of the server, and when the server cannot be
   * reached.
   */
  readonly message = new Signal<this, EventMessage>(this);

  /** Start the stream. A second call has no effect. */
  start(): void {
    if (this.isDisposed || this._isStarted) {
      return;
    }
    this._isStarted = true;
    this._onVisibility();
  }

  /** Close the socket and stop polling, until the next {@link start}. */
  stop(): void {
    this._isStarted = false;
    this._pause();
  }

  dispose(): void {
    this.stop();
    super.dispose();
  }

  private _onVisibility(): void {
    if (!this._isStarted || this._options.visibility.hidden) {
      this._pause();
    } else if (!this._isActive) {
      this._isActive = true;
      this._failures = 0;
      this._connect();
    }
  }

  private _pause(): void {
    this._isActive = false;
    clearTimeout(this._retryTimer);
    this._dropSocket();
    this._stopPolling();
  }

  private _connect(): void {
    let socket: WebSocket;
    try {
      socket = this._options.api.openEvents();
    } catch {
      this._onLost(false);
      return;
    }
    this._socket = socket;
    let hasMessage = false;
    const lost = () => {
      this._dropSocket();
      this._onLost(hasMessage);
    };
    // Some proxies accept the socket but forward no messages.
    this._silenceTimer = setTimeout(lost, FIRST_MESSAGE_TIMEOUT_MS);
    socket.onclose = lost;
    socket.onmessage = event => {
      const message = parseMessage(event.data);
      if (message) {
        hasMessage = true;
        clearTimeout(this._silenceTimer);
        this._failures = 0;
        this._stopPolling();
        this.message.emit(message);
      }
    };
  }

  /** Close the socket and ignore its later events. */
  private _dropSocket(): void {
    clearTimeout(this._silenceTimer);
    const socket = this._socket;
    this._socket = null;
    if (socket) {
      socket.onclose = socket.onmessage = null;
      socket.close();
    }
  }

  private _onLost(hasMessage: boolean): void {
    this._retryTimer = setTimeout(
      () => this._connect(),
      backoff(this._failures++, Math.random())
    );
    // A socket that has worked is tried again without polling, because the last
    // message is still recent.
    if (!hasMessage && !this._isPolling) {
      void this._poll();
    }
  }

  private async _poll(): Promise<void> {
    this._isPolling = true;
    const round = ++this._round;
    let message: EventMessage;
    try {
      message = { type: 'snapshot', status: await this._options.api.status() };
    } catch (error) {
      const { reason, status, message: text } = error as Partial<ApiError>;
      message = {
        type: 'unavailable',
        reason: reason || (status === 404 ? NO_EXTENSION : ''),
        message: text ?? ''
      };
    }
    if (round !== this._round) {
      return; // The stream was paused, or a socket gives messages again.
    }
    if (message.type === 'snapshot') {
      this._pollTimer = setTimeout(
        () => void this._poll(),
        this.pollInterval * 1000
      );
    } else {
      // The next attempt of the socket starts the next poll, so polls become
      // rarer.
      this._isPolling = false;
    }
    this.message.emit(message);
  }

  private _stopPolling(): void {
    this._round++;
    this._isPolling = false;
    clearTimeout(this._pollTimer);
  }

  private _socket: WebSocket | null = null;
  private _failures = 0;
  private _round = 0;
  private _isStarted = false;
  private _isActive = false;
  private _isPolling = false;
  private _silenceTimer?: ReturnType<typeof setTimeout>;
  private _retryTimer?: ReturnType<typeof setTimeout>;
  private _pollTimer?: ReturnType<typeof setTimeout>;
}
