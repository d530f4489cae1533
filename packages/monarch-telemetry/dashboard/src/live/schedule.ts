/** When to load again: after an interval, or soon after an event, never in a hidden tab, one load at a time. */

export interface Clock {
  now(): number;
  after(ms: number, then: () => void): () => void;
}

export const CLOCK: Clock = {
  now: () => performance.now(),
  after: (ms, then) => {
    const timer = setTimeout(then, ms);
    return () => clearTimeout(timer);
  },
};

/** Events closer together than this cause one load. */
const GAP_MS = 1000;

export class Schedule {
  private cancel: (() => void) | null = null;
  private running = false;
  private wanted = false;
  private hidden = false;
  private stopped = false;
  private began = Number.NEGATIVE_INFINITY;

  /** `load` must not throw. An interval of 0 loads again only on demand. */
  constructor(
    private readonly load: () => Promise<void>,
    private readonly interval: number,
    private readonly clock: Clock = CLOCK,
  ) {}

  /** Loads now, or when the present load has ended. */
  async now(): Promise<void> {
    this.wanted = true;
    if (this.running || this.hidden || this.stopped) return;
    this.cancel?.();
    this.cancel = null;
    this.running = true;
    this.wanted = false;
    this.began = this.clock.now();
    await this.load();
    this.running = false;
    if (this.stopped || this.hidden) return;
    if (this.wanted) this.soon();
    else if (this.interval > 0) this.wait(this.interval);
  }

  /** Loads once the gap since the last load is over. */
  soon(): void {
    this.wanted = true;
    if (this.running || this.hidden || this.stopped) return;
    this.wait(Math.max(0, this.began + GAP_MS - this.clock.now()));
  }

  setHidden(hidden: boolean): void {
    if (hidden === this.hidden) return;
    this.hidden = hidden;
    this.cancel?.();
    this.cancel = null;
    if (!hidden && (this.interval > 0 || this.wanted)) void this.now();
  }

  stop(): void {
    this.stopped = true;
    this.cancel?.();
  }

  private wait(ms: number): void {
    this.cancel?.();
    this.cancel = this.clock.after(ms, () => void this.now());
  }
}
