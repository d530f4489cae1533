/** At most so many tasks at a time; the others wait in the order in which they came. */

export class Turns {
  private running = 0;
  private readonly waiting: (() => void)[] = [];

  constructor(private readonly most: number) {}

  /** Throws what the task throws, or the reason of the signal where the wait was ended. */
  async take<T>(task: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    if (this.running >= this.most) await new Promise<void>((next) => this.waiting.push(next));
    else this.running += 1;
    try {
      signal?.throwIfAborted();
      return await task();
    } finally {
      // The turn goes to the next task, so the count stays.
      const next = this.waiting.shift();
      if (next === undefined) this.running -= 1;
      else next();
    }
  }
}
