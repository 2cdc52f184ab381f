/** Numbers, times and durations as people read them. */
import type { Moment } from './types';

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const full = new Intl.DateTimeFormat('en-GB', {
  year: 'numeric',
  month: 'short',
  day: '2-digit',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit'
});

export const count = (n: number | undefined): string => (n === undefined ? '–' : whole.format(n));
export const compact = (n: number | undefined): string =>
  n === undefined ? '–' : n < 10000 ? whole.format(n) : short.format(n);

export function rate(perSecond: number | undefined): string {
  if (perSecond === undefined) return '–';
  if (perSecond === 0) return '0/s';
  return perSecond < 1 ? `${(perSecond * 60).toFixed(1)}/min` : `${perSecond.toFixed(1)}/s`;
}

/** Milliseconds as `3 ms`, `1.2 s`, `4 min 5 s`, `2 h 3 min`, `5 d 1 h`. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return '–';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return two(Math.floor(seconds / 60), 'min', seconds % 60, 's');
  if (seconds < 86_400) return two(Math.floor(seconds / 3600), 'h', Math.floor((seconds % 3600) / 60), 'min');
  return two(Math.floor(seconds / 86_400), 'd', Math.floor((seconds % 86_400) / 3600), 'h');
}

const two = (large: number, unit: string, small: number, smallUnit: string): string =>
  small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;

export const ago = (at: number, now: number): string => `${duration(Math.max(0, now - at))} ago`;

/** Unix milliseconds of a moment; null for none (Go's zero time is none). */
export function millis(moment: Moment): number | null {
  if (typeof moment === 'number') return moment;
  if (!moment || moment.startsWith('0001-01-01')) return null;
  const parsed = Date.parse(moment);
  return Number.isNaN(parsed) ? null : parsed;
}

export function when(moment: Moment): string {
  const at = millis(moment);
  if (at === null) return '–';
  return new Date(at).toDateString() === new Date().toDateString()
    ? clock.format(at)
    : full.format(at).replace(',', '');
}

export function bytes(n: number): string {
  if (n < 1024) return `${n} B`;
  if (n < 1024 ** 2) return `${(n / 1024).toFixed(1)} KiB`;
  if (n < 1024 ** 3) return `${(n / 1024 ** 2).toFixed(1)} MiB`;
  return `${(n / 1024 ** 3).toFixed(1)} GiB`;
}

/** JSON with line breaks; any other text as it is. */
export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The beginning of a text, on one line. */
export function head(text: string, length = 160): string {
  const line = text.slice(0, length * 2).replace(/\s+/g, ' ');
  return line.length > length ? `${line.slice(0, length)}…` : line;
}

export const words = (name: string): string => name.replace(/_/g, ' ');
