/** Answers of the server, as far as the pages use them. Members ending in `_at` are unix milliseconds. */

export type Role = 'viewer' | 'operator' | 'admin';

export interface Me {
  who: string;
  role: string;
  roles: string[];
  queues: string[] | null;
  read_only: boolean;
}

export const STATES = ['pending', 'active', 'scheduled', 'retry', 'archived', 'completed'] as const;
export type State = (typeof STATES)[number];
export type Counts = Record<State, number>;
export type Action = 'run' | 'cancel' | 'archive' | 'delete';

export interface Queue extends Counts {
  queue: string;
  paused: boolean;
  processed: number;
  failed: number;
  latency_ms: number;
  workers?: number;
}

export interface Health {
  ok: boolean;
  error?: string;
}

export interface Overview {
  at: number;
  queues: Queue[];
  workers: { total: number; ready: number; degraded: number; stale: number };
  totals: Partial<Counts>;
  rates?: { processed_per_second: number; failed_per_second: number };
  redis: Health;
  database?: Health;
  version?: string;
}

export interface TaskRow {
  id: string;
  queue: string;
  type: string;
  state: State;
  payload: string;
  max_retry: number;
  retried: number;
  error?: string;
  last_err?: string;
  worker?: string;
  started_at?: Moment;
  completed_at?: Moment;
  last_failed_at?: Moment;
  next_process_at?: Moment;
  created_at?: Moment;
  completed_at_ms?: number;
  last_failed_at_ms?: number;
  next_process_at_ms?: number;
}

/** Unix milliseconds, or a text that the server made. */
export type Moment = number | string | null | undefined;

export interface Attempt {
  number: number;
  worker: string;
  started_at: Moment;
  ended_at: Moment;
  outcome: string;
  reason: string;
}

export interface Task extends TaskRow {
  LastErr?: string;
  LastFailedAt?: Moment;
  NextProcessAt?: Moment;
  CompletedAt?: Moment;
  Result?: string;
  result?: string;
  result_stored?: boolean;
  limits?: Record<string, unknown>;
  attempts?: Attempt[];
  actions?: Action[];
  expires_at?: Moment;
  task?: string;
  progress?: unknown;
}

export interface Worker {
  worker_id: string;
  started_at: number;
  last_beat: number;
  concurrency: number;
  queues: string;
  status: string;
  is_stale: boolean;
  healthy?: boolean;
  version?: string;
  queue_priorities?: Record<string, number>;
  metrics?: Record<string, unknown>;
  recovery?: Record<string, unknown>;
  commits?: Record<string, string>;
  current?: string[];
  detail?: string[];
}

export interface Quantiles {
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
}

export interface History {
  queue: string;
  range: string;
  step_seconds: number;
  points: { at: number; processed: number; failed: number; wait: Quantiles | null; run: Quantiles | null }[];
}
