/** What the pages on workers share. */
import type { Worker } from './types';

export function statusOf(worker: Worker): string {
  if (worker.is_stale) return 'stale';
  if (worker.status === 'running') return worker.current?.length ? 'active' : 'ready';
  return worker.status;
}

/** Queues with their priority; older workers send only Go's print of a map. */
export function queuesOf(worker: Worker): [string, number][] {
  if (worker.queue_priorities) return Object.entries(worker.queue_priorities);
  const inside = /^map\[(.*)\]$/.exec(worker.queues)?.[1] ?? '';
  return inside
    .split(' ')
    .filter(Boolean)
    .map((pair) => [pair.slice(0, pair.lastIndexOf(':')), Number(pair.slice(pair.lastIndexOf(':') + 1))]);
}

export const STATUSES = ['active', 'ready', 'bootstrapping', 'recovering', 'degraded', 'paused', 'draining', 'stale', 'stopped'];
