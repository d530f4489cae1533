/** Buckets of message activity as points of a chart. */

import type { MessageActivity } from "../../api/types";

export interface Points {
  times: number[];
  counts: number[];
}

export function points({ buckets }: MessageActivity): Points {
  return { times: buckets.map((bucket) => bucket.start_us), counts: buckets.map((bucket) => bucket.count) };
}
