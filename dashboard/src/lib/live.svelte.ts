/** The one live picture of the server that all pages share. */
import { ApiError, get, messageOf } from './api';
import { settings } from './settings.svelte';
import { listen } from './stream';
import { STATES, type Counts, type Overview, type Queue, type Worker } from './types';

/** Pings come at least every 15 s. */
const SILENT_MS = 20_000;
const KEPT = 60;

class Live {
  overview = $state.raw<Overview | null>(null);
  /** When anything was last heard; browser clock, ms. */
  heardAt = $state(0);
  now = $state(Date.now());
  isPaused = $state(false);
  isConnected = $state(false);
  problem = $state('');
  /** The last waiting counts of each queue, oldest first; for the small curves. */
  recent = $state.raw<Map<string, number[]>>(new Map());

  #stop: AbortController | null = null;

  get isOld(): boolean {
    return this.overview !== null && !this.isPaused && (!this.isConnected || this.now - this.heardAt > SILENT_MS);
  }

  get ageMs(): number {
    return Math.max(0, this.now - this.heardAt);
  }

  /** Follow the server while the page is visible. Returns what ends that. */
  start(): () => void {
    const ticking = setInterval(() => (this.now = Date.now()), 1000);
    const onVisibility = (): void => (document.hidden ? this.#close() : this.#open());
    document.addEventListener('visibilitychange', onVisibility);
    this.#open();
    return () => {
      clearInterval(ticking);
      document.removeEventListener('visibilitychange', onVisibility);
      this.#close();
    };
  }

  togglePause(): void {
    this.isPaused = !this.isPaused;
    if (this.isPaused) this.#close();
    else this.#open();
  }

  /** Ask now, besides the stream; after an action of our own. */
  async refresh(): Promise<void> {
    try {
      this.#take(await fetchOverview());
    } catch {
      // The stream itself tells when the server is gone.
    }
  }

  #open(): void {
    if (this.#stop || this.isPaused || document.hidden) return;
    this.#stop = new AbortController();
    void this.#follow(this.#stop.signal);
  }

  #close(): void {
    this.#stop?.abort();
    this.#stop = null;
  }

  async #follow(signal: AbortSignal): Promise<void> {
    let delay = 500;
    let hasStream = true;
    while (!signal.aborted) {
      try {
        if (hasStream) {
          await listen('/api/live', signal, {
            alive: () => {
              this.#heard();
              delay = 500;
            },
            event: (name, data) => name === 'snapshot' && this.#take(JSON.parse(data) as Overview)
          });
        } else {
          this.#take(await fetchOverview(signal));
          delay = settings.values.pollInterval * 1000;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (hasStream && error instanceof ApiError && error.isMissing) {
          hasStream = false;
          continue;
        }
        this.problem = messageOf(error);
        this.isConnected = false;
      }
      if (hasStream) this.isConnected = false;
      await new Promise((resolve) => setTimeout(resolve, delay));
      if (!this.isConnected) delay = Math.min(delay * 2, 10_000);
    }
  }

  #heard(): void {
    this.heardAt = this.now = Date.now();
    this.isConnected = true;
    this.problem = '';
  }

  #take(overview: Overview): void {
    this.#heard();
    this.overview = overview;
    const recent = new Map<string, number[]>();
    for (const queue of overview.queues) {
      recent.set(queue.queue, [...(this.recent.get(queue.queue) ?? []), queue.pending + queue.retry].slice(-KEPT));
    }
    this.recent = recent;
  }
}

async function fetchOverview(signal?: AbortSignal): Promise<Overview> {
  try {
    return await get<Overview>('/api/overview', signal);
  } catch (error) {
    if (error instanceof ApiError && error.isMissing) return await composed(signal);
    throw error;
  }
}

/** The same picture from the older routes, for a server without the new one. */
async function composed(signal?: AbortSignal): Promise<Overview> {
  type OldQueue = Queue & { latency_seconds: number };
  const [{ queues }, { workers }] = await Promise.all([
    get<{ queues: OldQueue[] | null }>('/api/queues', signal),
    get<{ workers: Worker[] }>('/workers', signal)
  ]);
  const rows = (queues ?? []).map((queue) => ({ ...queue, latency_ms: queue.latency_seconds * 1000 }));
  const totals: Partial<Counts> = {};
  for (const state of STATES) totals[state] = rows.reduce((sum, queue) => sum + queue[state], 0);
  const stale = workers.filter((worker) => worker.is_stale).length;
  const ready = workers.filter((worker) => !worker.is_stale && worker.status === 'running').length;
  const degraded = workers.filter((worker) => !worker.is_stale && worker.status === 'degraded').length;
  return {
    at: Date.now(),
    queues: rows,
    totals,
    workers: { total: workers.length, ready, stale, degraded },
    redis: { ok: true }
  };
}

export const live = new Live();
