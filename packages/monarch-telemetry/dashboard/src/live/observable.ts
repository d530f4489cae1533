/** A value with subscribers. */

import { useEffect, useState } from "preact/hooks";

export class Observable<T> {
  private readonly subscribers = new Set<(value: T) => void>();

  constructor(private current: T) {}

  get(): T {
    return this.current;
  }

  set(value: T): void {
    if (Object.is(value, this.current)) return;
    this.current = value;
    for (const subscriber of [...this.subscribers]) subscriber(value);
  }

  /** Returns what ends the subscription. */
  subscribe(subscriber: (value: T) => void): () => void {
    this.subscribers.add(subscriber);
    return () => this.subscribers.delete(subscriber);
  }
}

export function useObservable<T>(observable: Observable<T>): T {
  const [value, setValue] = useState(observable.get());
  useEffect(() => {
    setValue(observable.get());
    return observable.subscribe(setValue);
  }, [observable]);
  return value;
}
