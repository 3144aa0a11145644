import { Signal } from '@lumino/signaling';

import { Disposable } from '../base/disposable';
import {
  NO_EXTENSION,
  parseMessage,
  type EventMessage
} from '../base/protocol';
import type { ApiError, IServerAccess } from './api';

/** Milliseconds. */
const MIN_DELAY_MS = 1000;
const MAX_DELAY_MS = 30000;
const FIRST_MESSAGE_TIMEOUT_MS = 10000;

/**
 * How long to wait before trying again, in milliseconds: doubling from 1 s to
 * 30 s, with jitter so that the pages of a restarted server don't come back all
 * at the same moment.
 *
 * @param failures - how many tries in a row have failed before
 * @param random - uniform in [0, 1)
 */
export function backoff(failures: number, random: number): number {
  const ceiling = Math.min(MAX_DELAY_MS, MIN_DELAY_MS * 2 ** failures);
  return Math.max(MIN_DELAY_MS, ceiling * (0.5 + random / 2));
}

/**
 * A lasting stream of the server's messages.
 *
 * It reconnects by itself. Where no socket gives messages, it asks by GET
 * instead, and goes on trying the socket. It holds no connection and no timer
 * while the page is hidden.
 */
export class EventStream extends Disposable {
  constructor(private readonly _options: IServerAccess) {
    super();
    _options.visibility.changed.connect(this._onVisibility, this);
  }

  /** Seconds between two requests where no socket gives messages. */
  pollInterval = 5;

  /** Emitted for every message of the server, and when it can't be reached. */
  readonly message = new Signal<this, EventMessage>(this);

  /** Begin; does nothing if it has begun. */
  start(): void {
    if (this.isDisposed || this._isStarted) {
      return;
    }
    this._isStarted = true;
    this._onVisibility();
  }

  /** Close the socket and stop asking. {@link start} begins anew. */
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
    // Some proxies accept the socket and then pass nothing on.
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

  /** Let go of the socket; none of its later events arrives here. */
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
    // A socket that worked a moment ago is tried again first: the last message
    // is still the best that is known.
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
        type: 'away',
        reason: reason || (status === 404 ? NO_EXTENSION : ''),
        message: text ?? ''
      };
    }
    if (round !== this._round) {
      return; // Meanwhile paused, or a socket speaks.
    }
    if (message.type === 'snapshot') {
      this._pollTimer = setTimeout(
        () => void this._poll(),
        this.pollInterval * 1000
      );
    } else {
      // Asked again with the next try of the socket, thus ever more rarely.
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
